//! Which requests concern us, and what they say.

use std::path::PathBuf;
use std::time::Duration;

use containerd_shim::protos::api::{
    CreateTaskRequest, CreateTaskResponse, DeleteRequest, StartRequest, StartResponse, UpdateTaskRequest,
};
use containerd_shim::protos::protobuf::Message;
use containerd_shim::protos::ttrpc::proto::{Code, Request, Response};

/// The Task service in the versions that containerd 1.6 to 2.x speak. Their messages are the same on the wire
/// in every field that is read here.
pub(crate) const SERVICES: [&str; 2] = ["containerd.task.v3.Task", "containerd.task.v2.Task"];

/// A request that the relay answers or follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A container is to be created.
    Create {
        /// The container's id.
        id: String,
        /// Its bundle.
        bundle: PathBuf,
        /// Whether the client is a containerd 1.x, by the version of the service.
        legacy: bool,
        /// How long the client waits for the answer; `None`: as long as it takes.
        timeout: Option<Duration>,
        /// The encoded `CreateTaskRequest`.
        payload: Vec<u8>,
    },
    /// A container's first process is to be started.
    Start {
        /// The container's id.
        id: String,
    },
    /// A container is to be deleted.
    Delete {
        /// The container's id.
        id: String,
    },
    /// A container is to have other resources.
    Update {
        /// The container's id.
        id: String,
    },
}

/// Whether a request needs to be held back until it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not ours: hand it through as it comes.
    Pass,
    /// The bytes so far do not tell.
    Unknown,
    /// It is a call that the relay may have to follow.
    Ours,
}

/// Looks at the first bytes of a `ttrpc.Request` (`service` is field 1, `method` field 2), so that a large
/// request to another service never has to be kept in memory.
pub(crate) fn verdict(mut bytes: &[u8]) -> Verdict {
    let (mut service, mut method) = (None, None);
    loop {
        let Some((field, value)) = next_field(&mut bytes) else { return Verdict::Unknown };
        match (field, value) {
            (1, Some(value)) => service = Some(value),
            (2, Some(value)) => method = Some(value),
            (_, Some(_)) => {}
            // Not protobuf, or a wire type that is not in use: not for us to judge.
            (_, None) => return Verdict::Pass,
        }
        if service.is_some_and(|name| !SERVICES.iter().any(|known| known.as_bytes() == name)) {
            return Verdict::Pass;
        }
        if service.is_some()
            && let Some(method) = method
        {
            let ours = [&b"Create"[..], b"Start", b"Delete", b"Update"].contains(&method);
            return if ours { Verdict::Ours } else { Verdict::Pass };
        }
    }
}

/// Takes one field off an encoded message: its number, and its bytes if it is length-delimited (a varint
/// gives an empty value). `None`: there are not enough bytes. A value of `None`: these bytes are no such
/// message.
fn next_field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Option<&'a [u8]>)> {
    let mut rest = *bytes;
    let tag = varint(&mut rest)?;
    let value = match tag & 7 {
        0 => {
            varint(&mut rest)?;
            Some(&[][..])
        }
        2 => {
            let length = usize::try_from(varint(&mut rest)?).ok()?;
            let (value, after) = rest.split_at_checked(length)?;
            rest = after;
            Some(value)
        }
        _ => None,
    };
    *bytes = rest;
    Some((tag >> 3, value))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    Some(value)
}

/// Decodes the body of a complete request. `None`: it is not ours, or it does not decode, and then the stock
/// shim is the one to say so.
pub(crate) fn decode(body: &[u8]) -> Option<Call> {
    let request = Request::parse_from_bytes(body).ok()?;
    if !SERVICES.contains(&request.service.as_str()) {
        return None;
    }
    match request.method.as_str() {
        "Create" => {
            let create = CreateTaskRequest::parse_from_bytes(&request.payload).ok()?;
            let timeout = u64::try_from(request.timeout_nano).ok().filter(|&nanos| nanos > 0);
            Some(Call::Create {
                id: create.id,
                bundle: create.bundle.into(),
                legacy: request.service == SERVICES[1],
                timeout: timeout.map(Duration::from_nanos),
                payload: request.payload,
            })
        }
        "Start" => {
            let start = StartRequest::parse_from_bytes(&request.payload).ok()?;
            start.exec_id.is_empty().then_some(Call::Start { id: start.id })
        }
        "Delete" => {
            let delete = DeleteRequest::parse_from_bytes(&request.payload).ok()?;
            delete.exec_id.is_empty().then_some(Call::Delete { id: delete.id })
        }
        "Update" => {
            let update = UpdateTaskRequest::parse_from_bytes(&request.payload).ok()?;
            Some(Call::Update { id: update.id })
        }
        _ => None,
    }
}

/// How the stock shim answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done; the payload.
    Done(Vec<u8>),
    /// There is no such container.
    NotFound,
    /// Refused for another reason.
    Refused,
}

/// Decodes the body of a response.
pub(crate) fn answer(body: &[u8]) -> Answer {
    match Response::parse_from_bytes(body) {
        Ok(response) => match response.status.code() {
            Code::OK => Answer::Done(response.payload),
            Code::NOT_FOUND => Answer::NotFound,
            _ => Answer::Refused,
        },
        Err(_) => Answer::Refused,
    }
}

/// The pid in the payload of a `Create`'s answer; `None` for a container that is restored from a checkpoint,
/// which has no process before `Start`.
pub(crate) fn created_pid(payload: &[u8]) -> Option<i32> {
    pid(CreateTaskResponse::parse_from_bytes(payload).ok()?.pid)
}

/// The pid in the payload of a `Start`'s answer.
pub(crate) fn started_pid(payload: &[u8]) -> Option<i32> {
    pid(StartResponse::parse_from_bytes(payload).ok()?.pid)
}

fn pid(pid: u32) -> Option<i32> {
    i32::try_from(pid).ok().filter(|&pid| pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(service: &str, method: &str, payload: Vec<u8>) -> Vec<u8> {
        let request = Request {
            service: service.into(),
            method: method.into(),
            payload,
            timeout_nano: 5_000_000_000,
            ..Default::default()
        };
        request.write_to_bytes().unwrap()
    }

    fn create() -> Vec<u8> {
        let create = CreateTaskRequest { id: "c1".into(), bundle: "/run/b/c1".into(), ..Default::default() };
        create.write_to_bytes().unwrap()
    }

    #[test]
    fn both_versions_of_create_are_ours() {
        for service in SERVICES {
            let body = request(service, "Create", create());
            assert_eq!(verdict(&body), Verdict::Ours);
            let expected = Call::Create {
                id: "c1".into(),
                bundle: "/run/b/c1".into(),
                legacy: service.contains("v2"),
                timeout: Some(Duration::from_secs(5)),
                payload: create(),
            };
            assert_eq!(decode(&body), Some(expected));
        }
    }

    #[test]
    fn a_process_of_an_exec_is_not_ours() {
        let delete = DeleteRequest { id: "c1".into(), exec_id: "e1".into(), ..Default::default() };
        let body = request(SERVICES[0], "Delete", delete.write_to_bytes().unwrap());
        assert_eq!(verdict(&body), Verdict::Ours);
        assert_eq!(decode(&body), None);
        let delete = DeleteRequest { id: "c1".into(), ..Default::default() };
        let body = request(SERVICES[0], "Delete", delete.write_to_bytes().unwrap());
        assert_eq!(decode(&body), Some(Call::Delete { id: "c1".into() }));
    }

    #[test]
    fn a_large_request_to_somebody_else_is_known_by_its_first_bytes() {
        let body = request("containerd.services.Streaming", "Stream", vec![0; 100_000]);
        assert_eq!(verdict(&body[..40]), Verdict::Pass);
        let body = request(SERVICES[0], "Exec", vec![0; 100_000]);
        assert_eq!(verdict(&body[..40]), Verdict::Pass);
        assert_eq!(verdict(&body[..10]), Verdict::Unknown);
    }

    #[test]
    fn the_order_of_the_fields_does_not_matter() {
        let service = SERVICES[1].as_bytes();
        let payload = create();
        let mut body = vec![0x1a, payload.len() as u8];
        body.extend(&payload);
        body.extend([0x12, 6]);
        body.extend(b"Create");
        body.extend([0x0a, service.len() as u8]);
        assert_eq!(verdict(&body), Verdict::Unknown);
        body.extend(service);
        assert_eq!(verdict(&body), Verdict::Ours);
        assert!(matches!(decode(&body), Some(Call::Create { .. })));
    }

    #[test]
    fn garbage_is_not_ours() {
        assert_eq!(verdict(&[0xff; 64]), Verdict::Pass);
        assert_eq!(verdict(b"GET / HTTP/1.1\r\n"), Verdict::Pass);
        assert_eq!(decode(&[0xff; 64]), None);
        assert_eq!(answer(&[0xff; 64]), Answer::Refused);
    }
}
