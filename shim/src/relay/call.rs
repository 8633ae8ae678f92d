//! The calls that the relay follows. A Create has a connection of its own to the stock shim: a ttrpc server
//! takes a connection's requests only in the order of their stream ids, so one that was held back could not
//! follow the later ones on theirs (ttrpc, server.go: "StreamID cannot be re-used and must increment"). The
//! others go through at once, on the client's, where their answers are held.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use containerd_shim::protos::ttrpc::proto::{Code, MESSAGE_LENGTH_MAX, MESSAGE_TYPE_RESPONSE};
use fgpu_engine::mention::of_fgpu;
use nix::poll::PollFlags;

use crate::frame::{HEADER, Piece, Splitter, error_frame};
use crate::job::{Prepared, Work};
use crate::log;
use crate::request::{Answer, Call as Request, answer, created_pid, decode, started_pid};

use super::Relay;
use super::job::{Job, Purpose};
use super::lease::Lease;
use super::pair::{Fate, Outbox, read};

/// A request that was taken off a client's connection.
#[derive(Debug)]
pub(super) struct Call {
    /// The client's pair; it may be gone by the time of the answer.
    pair: u64,
    stream: u32,
    id: String,
    method: Method,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Create,
    Start,
    Update,
    Delete,
}

#[derive(Debug)]
enum Stage {
    /// A job reserves for it. The request is sent on when that is done, or refused at `until`.
    Preparing { request: Vec<u8>, until: Option<Instant>, legacy: bool },
    /// The stock shim has it.
    Forwarded(Box<Forward>),
    /// The stock shim has it, on the client's own connection.
    Passed,
    /// The stock shim's answer, which goes to the client as soon as the share is free.
    Releasing(Vec<u8>),
    /// The stock shim's answer, which goes to the client as soon as the devices have been looked at.
    Reopening(Vec<u8>),
}

/// A request with the stock shim.
#[derive(Debug)]
pub(super) struct Forward {
    pub(super) socket: UnixStream,
    out: Outbox,
    splitter: Splitter,
    frame: Vec<u8>,
}

impl Call {
    /// The connection to wait on, and what for.
    pub(super) fn forward(&self) -> Option<(&UnixStream, PollFlags)> {
        let Stage::Forwarded(forward) = &self.stage else { return None };
        let write = if forward.out.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        Some((&forward.socket, PollFlags::POLLIN | write))
    }

    /// When it is to be given up.
    pub(super) fn until(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Preparing { until, .. } => *until,
            _ => None,
        }
    }
}

impl Relay {
    /// Decides on a complete request that may be ours.
    pub(super) fn intercept(&mut self, pair: u64, stream: u32, request: Vec<u8>) -> Fate {
        match decode(&request[HEADER..]) {
            // A second Create of the same name. One that is not forwarded yet is only known here: the stock
            // shim would make the container, and without its share.
            Some(Request::Create { id, .. }) if self.is_held_back(&id) => {
                let message = format!("fgpu: a create of {id} is under way");
                Fate::Answer(error_frame(stream, Code::ALREADY_EXISTS, &message))
            }
            // Any other is for the stock shim to refuse.
            Some(Request::Create { id, bundle, legacy, timeout, payload })
                if !self.has_lease(&id) && of_fgpu(&bundle.join("config.json")) == Some(true) =>
            {
                self.reserve(Call::preparing(pair, stream, id, request, timeout, legacy), &bundle, payload)
            }
            Some(Request::Start { id }) if self.leases.get(&id).is_some_and(|lease| lease.init.is_none()) => {
                self.watch(Call::passed(pair, stream, id, Method::Start), request)
            }
            Some(Request::Update { id }) if self.has_lease(&id) => {
                self.watch(Call::passed(pair, stream, id, Method::Update), request)
            }
            Some(Request::Delete { id }) if self.has_lease(&id) => {
                let preparing = self.calls.iter().find(|(_, call)| call.id == id && call.is_preparing());
                if let Some((&key, _)) = preparing {
                    // The client has given up on its Create; the stock shim has never heard of it and says
                    // so.
                    self.cancel(
                        key,
                        Code::CANCELLED,
                        "the container was deleted while it waited for a share",
                    );
                }
                self.watch(Call::passed(pair, stream, id, Method::Delete), request)
            }
            _ => Fate::Pass(request),
        }
    }

    /// Whether a Create of this container waits for its share, or for that to be given back.
    fn is_held_back(&self, id: &str) -> bool {
        let held_back = |call: &Call| !matches!(call.stage, Stage::Forwarded(_));
        self.calls.values().any(|call| call.id == id && call.method == Method::Create && held_back(call))
    }

    fn reserve(&mut self, call: Call, bundle: &Path, payload: Vec<u8>) -> Fate {
        let key = self.key();
        let maker = nix::unistd::getpid().as_raw();
        let work = Work::Prepare { namespace: self.setup.namespace.clone(), maker, request: payload };
        match Job::start(&self.setup, Purpose::Prepare(key), work) {
            Ok(job) => {
                self.jobs.insert(key, job);
                self.leases.insert(call.id.clone(), Lease::default());
                self.calls.insert(key, call);
                Fate::Taken
            }
            Err(error) => {
                let message = format!("fgpu: internal: cannot reserve for {}: {error}", bundle.display());
                Fate::Answer(error_frame(call.stream, Code::INTERNAL, &message))
            }
        }
    }

    /// The reservation for a call has ended.
    pub(super) fn prepared(&mut self, key: u64, prepared: Option<Prepared>, how: &str) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let Stage::Preparing { request, legacy, .. } = &mut call.stage else { return };
        match prepared {
            Some(Prepared::Nothing) => {
                let request = std::mem::take(request);
                self.leases.remove(&call.id);
                self.forward(key, &request);
            }
            Some(Prepared::Granted(nonce)) => {
                let request = std::mem::take(request);
                if let Some(lease) = self.leases.get_mut(&call.id) {
                    lease.nonce = Some(nonce);
                }
                self.forward(key, &request);
            }
            Some(Prepared::Failed(code, message)) => {
                let (pair, frame) = (call.pair, error_frame(call.stream, status_of(code, *legacy), &message));
                self.leases.remove(&call.id);
                self.calls.remove(&key);
                self.answer(pair, &frame);
            }
            None => {
                let message = format!(
                    "fgpu: internal: the reservation ended without a result ({how}); see containerd's log"
                );
                self.fail(key, Code::INTERNAL, &message);
            }
        }
    }

    /// Gives up on a call whose reservation is under way.
    pub(super) fn cancel(&mut self, key: u64, code: Code, why: &str) {
        // The job of a reservation has the key of its call.
        if let Some(job) = self.jobs.remove(&key) {
            job.kill();
        }
        self.fail(key, code, &format!("fgpu: {why}"));
    }

    /// Gives up on all the reservations of a client that is gone.
    pub(super) fn abandon(&mut self, pair: u64) {
        let calls = self.calls.iter().filter(|(_, call)| call.pair == pair);
        let (preparing, others): (Vec<_>, Vec<_>) = calls.partition(|(_, call)| call.is_preparing());
        for (_, call) in others {
            if let Stage::Forwarded(forward) = &call.stage {
                // As the client did: the stock shim then gives the request up.
                let _ = forward.socket.shutdown(Shutdown::Write);
            }
        }
        for key in preparing.into_iter().map(|(&key, _)| key).collect::<Vec<_>>() {
            self.cancel(key, Code::CANCELLED, "the client is gone");
        }
    }

    /// Refuses a call, after what it may hold has been given back.
    fn fail(&mut self, key: u64, code: Code, message: &str) {
        let Some(call) = self.calls.get(&key) else { return };
        let frame = error_frame(call.stream, code, message);
        self.release_then(key, frame);
    }

    /// Answers a call as soon as its container holds nothing any more.
    fn release_then(&mut self, key: u64, frame: Vec<u8>) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let id = call.id.clone();
        call.stage = Stage::Releasing(frame);
        if self.has_lease(&id) { self.release(&id) } else { self.released(&id) }
    }

    /// A container holds nothing any more: the answers that waited for that go out.
    pub(super) fn released(&mut self, id: &str) {
        let waits = |call: &Call| call.id == id && matches!(call.stage, Stage::Releasing(_));
        let keys: Vec<u64> = self.calls.iter().filter(|(_, call)| waits(call)).map(|(&key, _)| key).collect();
        for key in keys {
            if let Some(Call { pair, stage: Stage::Releasing(frame), .. }) = self.calls.remove(&key) {
                self.answer(pair, &frame);
            }
        }
    }

    /// The runtime has changed a container's resources: crun's puts the engine's device rules in the place of
    /// ours. A client that learns that the update is done finds the GPU open.
    fn reopen_then(&mut self, key: u64, frame: Vec<u8>) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let id = call.id.clone();
        call.stage = Stage::Reopening(frame);
        if !self.reopen(&id, key) {
            self.reopened(key);
        }
    }

    /// A container's devices have been looked at: the answer that waited for that goes out.
    pub(super) fn reopened(&mut self, key: u64) {
        if let Some(Call { pair, stage: Stage::Reopening(frame), .. }) = self.calls.remove(&key) {
            self.answer(pair, &frame);
        }
    }

    fn watch(&mut self, call: Call, request: Vec<u8>) -> Fate {
        let key = self.key();
        self.calls.insert(key, call);
        Fate::Watch(request)
    }

    /// The stock shim has answered a call on its client's own connection.
    pub(super) fn answered(&mut self, pair: u64, stream: u32, frame: Vec<u8>) {
        let call = self.passed(pair, |call| call.stream == stream).pop();
        match call {
            Some(key) => self.responded(key, frame),
            None => self.answer(pair, &frame),
        }
    }

    /// A pair has come to its end, and with it what it might have brought.
    pub(super) fn lose(&mut self, pair: u64) {
        for key in self.passed(pair, |_| true) {
            self.unanswered(key);
        }
        self.abandon(pair);
    }

    /// The keys of the calls that went through on a client's own connection.
    fn passed(&self, pair: u64, which: impl Fn(&Call) -> bool) -> Vec<u64> {
        let passed = |call: &Call| call.pair == pair && matches!(call.stage, Stage::Passed) && which(call);
        self.calls.iter().filter(|(_, call)| passed(call)).map(|(&key, _)| key).collect()
    }

    /// Sends a Create to the stock shim, on a connection of its own.
    fn forward(&mut self, key: u64, request: &[u8]) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        match super::connect(&self.setup.stock) {
            Ok(socket) => {
                let mut forward = Box::new(Forward {
                    socket,
                    out: Outbox::default(),
                    splitter: Splitter::default(),
                    frame: Vec::new(),
                });
                forward.out.push(request);
                call.stage = Stage::Forwarded(forward);
                self.pump_forward(key, PollFlags::POLLOUT, &mut []);
            }
            Err(error) => {
                log::warn(&self.setup.bundle, &call.id, format!("cannot connect to the stock shim: {error}"));
                self.unanswered(key);
            }
        }
    }

    /// Moves a forwarded call on.
    pub(super) fn pump_forward(&mut self, key: u64, ready: PollFlags, buffer: &mut [u8]) {
        let Some(Call { stage: Stage::Forwarded(forward), stream, .. }) = self.calls.get_mut(&key) else {
            return;
        };
        let mut broken = forward.out.flush(&forward.socket).is_err();
        if ready.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            match read(&forward.socket, buffer) {
                Some(0) => broken = true,
                Some(count) => match forward.feed(&buffer[..count], *stream) {
                    Ok(Some(frame)) => return self.responded(key, frame),
                    Ok(None) => {}
                    Err(TooLong) => broken = true,
                },
                None => {}
            }
        }
        if broken {
            self.unanswered(key);
        }
    }

    /// The stock shim has answered a call.
    fn responded(&mut self, key: u64, frame: Vec<u8>) {
        let Some(call) = self.calls.get(&key) else { return };
        let (id, pair, method) = (call.id.clone(), call.pair, call.method);
        match (method, answer(&frame[HEADER..])) {
            (Method::Create, Answer::Done(payload)) => {
                self.calls.remove(&key);
                self.answer(pair, &frame);
                if let Some(pid) = created_pid(&payload) {
                    self.created(&id, pid);
                }
            }
            (Method::Start, outcome) => {
                self.calls.remove(&key);
                self.answer(pair, &frame);
                if let Answer::Done(payload) = outcome
                    && let Some(pid) = started_pid(&payload)
                {
                    self.created(&id, pid);
                }
            }
            // A container that is not there (any more) holds nothing. A client that learns that it is gone
            // may start the next one into its room at once.
            (Method::Create, _) | (Method::Delete, Answer::Done(_) | Answer::NotFound) => {
                self.release_then(key, frame);
            }
            // One that was refused may have been done in part.
            (Method::Update, _) => self.reopen_then(key, frame),
            (Method::Delete, Answer::Refused) => {
                self.calls.remove(&key);
                self.answer(pair, &frame);
            }
        }
    }

    /// The stock shim closed a call's connection without an answer: it has died, or it gave the call up
    /// because the client did. What became of the container is not known, so its lease stays until it is
    /// deleted, or the stock shim's end is seen.
    fn unanswered(&mut self, key: u64) {
        let Some(call) = self.calls.remove(&key) else { return };
        log::warn(&self.setup.bundle, &call.id, "the stock shim did not answer");
        let frame = error_frame(call.stream, Code::UNAVAILABLE, "fgpu: the stock shim did not answer");
        self.answer(call.pair, &frame);
    }
}

impl Call {
    fn passed(pair: u64, stream: u32, id: String, method: Method) -> Self {
        Self { pair, stream, id, method, stage: Stage::Passed }
    }

    fn preparing(
        pair: u64,
        stream: u32,
        id: String,
        request: Vec<u8>,
        timeout: Option<Duration>,
        legacy: bool,
    ) -> Self {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let stage = Stage::Preparing { request, until, legacy };
        Self { pair, stream, id, method: Method::Create, stage }
    }

    /// Whether a job reserves for it.
    pub(super) fn is_preparing(&self) -> bool {
        matches!(self.stage, Stage::Preparing { .. })
    }
}

/// A frame that is longer than ttrpc allows. It is kept whole, so it is not believed.
struct TooLong;

impl Forward {
    /// Takes what the stock shim sent. Returns the answer's frame once it is complete.
    fn feed(&mut self, mut input: &[u8], stream: u32) -> Result<Option<Vec<u8>>, TooLong> {
        while let Some(piece) = self.splitter.next(&mut input) {
            match piece {
                Piece::Head(_, header) if header.length as usize > MESSAGE_LENGTH_MAX => return Err(TooLong),
                Piece::Head(raw, _) => self.frame = raw.to_vec(),
                Piece::Body(bytes) => self.frame.extend_from_slice(bytes),
            }
            let is_answer =
                self.frame[4..8] == stream.to_be_bytes() && self.frame[8] == MESSAGE_TYPE_RESPONSE;
            if self.splitter.at_boundary() && is_answer {
                return Ok(Some(std::mem::take(&mut self.frame)));
            }
        }
        Ok(None)
    }
}

/// The gRPC status of an error's code. It decides what containerd's clients take it for: a wrong request is
/// not to be repeated, a shortage may be. (`timed-out` is no DEADLINE_EXCEEDED, which would read as if
/// containerd itself had been too slow.)
///
/// containerd 1.x formats the message of an error whose status it knows once more, so that a `%` in it comes
/// out as `%!(NOVERB)` (errdefs/grpc.go `ToGRPC`); it leaves UNKNOWN, which is what its own shim gives, as it
/// is.
fn status_of(code: fgpu_spec::Code, legacy: bool) -> Code {
    use fgpu_spec::Code as Ours;
    if legacy {
        return Code::UNKNOWN;
    }
    match code {
        Ours::InvalidRequest | Ours::Conflict => Code::INVALID_ARGUMENT,
        Ours::Denied => Code::PERMISSION_DENIED,
        Ours::NoCapacity | Ours::Fragmented | Ours::NoMigPlacement | Ours::TimedOut => {
            Code::RESOURCE_EXHAUSTED
        }
        // Not CANCELLED: a client reads that as its own withdrawal.
        Ours::Cancelled => Code::ABORTED,
        Ours::NoGpu | Ours::TooLarge | Ours::GpuUnhealthy | Ours::DriverError => Code::FAILED_PRECONDITION,
        Ours::StateCorrupt | Ours::Internal => Code::INTERNAL,
    }
}
