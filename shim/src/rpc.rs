//! The two calls that we make to the stock shim ourselves, on a connection of their own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use containerd_shim::protos::api::{ConnectRequest, ConnectResponse, ShutdownRequest};
use containerd_shim::protos::protobuf::Message;
use containerd_shim::protos::ttrpc::proto::{Code, MESSAGE_LENGTH_MAX, MessageHeader, Request, Response};

use crate::frame::{HEADER, frame};
use crate::request::SERVICES;

/// How long we wait for the stock shim: both calls only look into its memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pid of the stock shim at `socket`.
pub(crate) fn shim_pid(socket: &Path, id: &str) -> anyhow::Result<i32> {
    let request = ConnectRequest { id: id.to_owned(), ..Default::default() };
    let payload = call(socket, "Connect", &request.write_to_bytes()?)?;
    let response = ConnectResponse::parse_from_bytes(&payload).context("the answer does not decode")?;
    i32::try_from(response.shim_pid).ok().filter(|&pid| pid > 1).context("the answer has no pid")
}

/// Asks the stock shim at `socket` to end. It does not, as long as it has a container.
pub(crate) fn shutdown(socket: &Path, id: &str) -> anyhow::Result<()> {
    let request = ShutdownRequest { id: id.to_owned(), now: true, ..Default::default() };
    call(socket, "Shutdown", &request.write_to_bytes()?).map(drop)
}

/// Calls a method of the Task service in the version that the shim serves. Returns the answer's payload.
fn call(socket: &Path, method: &str, payload: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut connection =
        UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    for (service, stream) in SERVICES.into_iter().zip([1, 3]) {
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: payload.to_owned(),
            timeout_nano: PATIENCE.as_nanos() as i64,
            ..Default::default()
        };
        let bytes = frame(MessageHeader::new_request(stream, 0), &request.write_to_bytes()?);
        connection.write_all(&bytes).with_context(|| format!("cannot ask for {method}"))?;
        let response = read_response(&mut connection).with_context(|| format!("no answer to {method}"))?;
        match response.status.code() {
            Code::OK => return Ok(response.payload),
            Code::UNIMPLEMENTED => {}
            _ => bail!("{method}: {}", response.status.message),
        }
    }
    bail!("the shim at {} serves no Task service that we know", socket.display())
}

fn read_response(connection: &mut UnixStream) -> anyhow::Result<Response> {
    let mut head = [0; HEADER];
    connection.read_exact(&mut head)?;
    let length = MessageHeader::from(&head[..]).length as usize;
    ensure!(length <= MESSAGE_LENGTH_MAX, "an answer of {length} bytes is none of ttrpc");
    let mut body = vec![0; length];
    connection.read_exact(&mut body)?;
    Response::parse_from_bytes(&body).context("the answer does not decode")
}
