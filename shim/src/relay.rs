//! The relay: it stands between containerd and the stock shim for as long as the stock shim lives.
//!
//! One thread, one poll(2) loop, no runtime: there is one of these per container (or pod), and it has to be
//! small. Everything that takes time or memory is a job in a process of its own.
//!
//! ```text
//! containerd ──── client │ stock ──── stock shim      a pair: every frame as it is
//!                        │ stock ──── stock shim      a call: Create, Start, Update, Delete of a container with a grant
//!                        │ control ── stock shim      says nothing; its end is the stock shim's end
//!                        │ pipe ───── job             the engine
//!                        │ pidfd ──── init            its end is the grant's
//! ```

mod call;
mod job;
mod lease;
mod pair;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use containerd_shim::protos::ttrpc::proto::Code;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::address::Identity;
use crate::invocation::Invocation;
use crate::job::Work;
use crate::{log, sys};

use call::Call;
use job::{Job, Purpose};
use lease::Lease;
use pair::Pair;

/// What one read takes at most.
const CHUNK: usize = 16 * 1024;

/// What a relay is told when it is started.
#[derive(Debug)]
struct Setup {
    namespace: String,
    id: String,
    /// The bundle of the container that the stock shim was started for; its log is ours.
    bundle: PathBuf,
    /// The stock shim's socket.
    stock: PathBuf,
    /// Does a job, in the job's process; a test has an engine of its own.
    engine: fn(&Path, Work, File) -> anyhow::Result<()>,
    cgroups: Cgroups,
}

/// How to tell whether a container's last process has ended; a test has cgroups of its own.
#[derive(Debug, Clone, Copy)]
struct Cgroups {
    of: fn(i32) -> Option<String>,
    is_empty: fn(&str) -> bool,
}

#[derive(Debug)]
struct Relay {
    setup: Setup,
    /// `None` once the stock shim has ended, as is `control`.
    listener: Option<UnixListener>,
    control: Option<UnixStream>,
    /// Our socket and the stock shim's, to be removed after its end.
    sockets: Vec<(PathBuf, Identity)>,
    pairs: BTreeMap<u64, Pair>,
    calls: BTreeMap<u64, Call>,
    jobs: BTreeMap<u64, Job>,
    /// By container id.
    leases: BTreeMap<String, Lease>,
    last_key: u64,
    /// The pair that is being worked on, and answers for it that came up meanwhile.
    working: Option<u64>,
    answers: Vec<Vec<u8>>,
}

/// What a descriptor that poll(2) looks at belongs to.
#[derive(Debug, Clone)]
enum Token {
    Listener,
    Control,
    Client(u64),
    Stock(u64),
    Call(u64),
    Job(u64),
    Init(String),
}

/// `-namespace NS -id ID -bundle DIR -stock SOCKET -socket SOCKET -listener FD -control FD fgpu-relay`.
pub(crate) fn run(invocation: &Invocation) -> anyhow::Result<()> {
    let inherited = |name: &str| -> anyhow::Result<OwnedFd> {
        let number = invocation.text(name)?.parse().with_context(|| format!("-{name} is no descriptor"))?;
        let fd = sys::inherited(number).with_context(|| format!("-{name} is not open"))?;
        fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        Ok(fd)
    };
    let listener = UnixListener::from(inherited("listener")?);
    let control = UnixStream::from(inherited("control")?);
    let path =
        |name: &str| invocation.flag(name).map(PathBuf::from).with_context(|| format!("-{name} is missing"));
    let setup = Setup {
        namespace: invocation.text("namespace")?.to_owned(),
        id: invocation.text("id")?.to_owned(),
        bundle: invocation.bundle()?,
        stock: path("stock")?,
        engine: |_, work, result| crate::job::run(work, result),
        cgroups: Cgroups { of: fgpu_engine::cgroup_of, is_empty: fgpu_engine::cgroup_is_empty },
    };
    // A session of our own: a signal to containerd's terminal or process group does not reach us. Fails only
    // for a process that leads a group already.
    let _ = nix::unistd::setsid();
    // The stock shim ends on SIGTERM, and then so do we. A relay that ended alone would take a container
    // down.
    sys::outlive_signals().context("cannot set signal handlers")?;
    adjust_oom_score();
    Relay::new(setup, path("socket")?, listener, control)?.serve();
    Ok(())
}

/// As the stock shim does for itself: one more than containerd's, so that containerd is the last to be killed
/// (containerd, pkg/shim/util_unix.go `AdjustOOMScore`). Failing to is no reason not to run.
fn adjust_oom_score() {
    let file = "/proc/self/oom_score_adj";
    let score = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(score) = score.filter(|&score| score < 1000) {
        let _ = std::fs::write(file, (score + 1).to_string());
    }
}

/// A new connection to the stock shim.
fn connect(stock: &Path) -> std::io::Result<UnixStream> {
    let socket = UnixStream::connect(stock)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Relay {
    fn new(
        setup: Setup,
        socket: PathBuf,
        listener: UnixListener,
        control: UnixStream,
    ) -> anyhow::Result<Self> {
        listener.set_nonblocking(true)?;
        control.set_nonblocking(true)?;
        let sockets = [socket, setup.stock.clone()];
        let sockets = sockets.into_iter().filter_map(|path| Identity::of(&path).map(|file| (path, file)));
        Ok(Self {
            sockets: sockets.collect(),
            setup,
            listener: Some(listener),
            control: Some(control),
            pairs: BTreeMap::new(),
            calls: BTreeMap::new(),
            jobs: BTreeMap::new(),
            leases: BTreeMap::new(),
            last_key: 0,
            working: None,
            answers: Vec::new(),
        })
    }

    fn key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// Runs until the stock shim has ended and everything that follows from that is done.
    fn serve(mut self) {
        let mut buffer = vec![0; CHUNK];
        while !self.is_done() {
            for (token, ready) in self.wait() {
                self.handle(&token, ready, &mut buffer);
            }
            self.run_timers(Instant::now());
            self.close_pairs();
        }
    }

    /// A container whose stock shim died may live on for a while: its share is watched to its end.
    fn is_done(&self) -> bool {
        self.control.is_none()
            && self.pairs.is_empty()
            && self.calls.is_empty()
            && self.jobs.is_empty()
            && self.leases.is_empty()
    }

    /// Waits until something is to be done.
    fn wait(&self) -> Vec<(Token, PollFlags)> {
        let mut tokens = Vec::new();
        let mut fds = Vec::new();
        let mut add = |token, fd, events: PollFlags| {
            if !events.is_empty() {
                tokens.push(token);
                fds.push(PollFd::new(fd, events));
            }
        };
        for (token, fd, events) in self.descriptors() {
            add(token, fd, events);
        }
        let timeout = self.next_time().map_or(PollTimeout::NONE, |time| {
            // Rounded up, or the last millisecond would be a busy loop.
            let left = time.saturating_duration_since(Instant::now()).as_millis() + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        if poll(&mut fds, timeout).is_err() {
            // EINTR, by a signal that we outlive, or ENOMEM.
            return Vec::new();
        }
        let ready = fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        tokens.into_iter().zip(ready).filter(|(_, ready)| !ready.is_empty()).collect()
    }

    fn descriptors(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>, PollFlags)> {
        let listener = self.listener.iter().map(|fd| (Token::Listener, fd.as_fd(), PollFlags::POLLIN));
        let control = self.control.iter().map(|fd| (Token::Control, fd.as_fd(), PollFlags::POLLIN));
        let pairs = self.pairs.iter().flat_map(|(&key, pair)| {
            let client = (Token::Client(key), pair.client.as_fd(), pair.client_events());
            [client, (Token::Stock(key), pair.stock.as_fd(), pair.stock_events())]
        });
        let calls = self.calls.iter().filter_map(|(&key, call)| {
            call.forward().map(|(socket, events)| (Token::Call(key), socket.as_fd(), events))
        });
        let jobs = self.jobs.iter().map(|(&key, job)| (Token::Job(key), job.fd(), PollFlags::POLLIN));
        let inits = self.leases.iter().filter_map(|(id, lease)| {
            let init = lease.init.as_ref().filter(|init| !init.ended)?;
            Some((Token::Init(id.clone()), init.pidfd.as_fd(), PollFlags::POLLIN))
        });
        listener.chain(control).chain(pairs).chain(calls).chain(jobs).chain(inits)
    }

    fn next_time(&self) -> Option<Instant> {
        let calls = self.calls.values().filter_map(Call::until);
        calls.chain(self.lease_times()).min()
    }

    /// Does what is due.
    fn run_timers(&mut self, now: Instant) {
        let due = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        let calls = self.calls.iter().filter(|(_, call)| due(call.until()));
        for key in calls.map(|(&key, _)| key).collect::<Vec<_>>() {
            self.cancel(key, Code::DEADLINE_EXCEEDED, "the client did not wait any longer for a share");
        }
        self.keep_leases(now);
    }

    fn handle(&mut self, token: &Token, ready: PollFlags, buffer: &mut [u8]) {
        match token {
            Token::Listener => self.accept(),
            Token::Control => self.listen_to_control(buffer),
            Token::Client(key) => self.with_pair(*key, |relay, pair| {
                if ready.contains(PollFlags::POLLOUT) {
                    pair.flush_down();
                }
                if ready.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR)
                    && !pair.up_ended
                {
                    pair.pump_up(buffer, |stream, request| relay.intercept(*key, stream, request));
                    if pair.up_ended {
                        relay.abandon(*key);
                    }
                }
            }),
            Token::Stock(key) => self.with_pair(*key, |relay, pair| {
                if ready.contains(PollFlags::POLLOUT) {
                    pair.flush_up();
                }
                if ready.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                    pair.pump_down(buffer, |stream, frame| relay.answered(*key, stream, frame));
                }
            }),
            Token::Call(key) => self.pump_forward(*key, ready, buffer),
            Token::Job(key) => {
                let Some(job) = self.jobs.get_mut(key) else { return };
                let ended = job.read();
                if let Some((call, prepared)) = job.result() {
                    self.prepared(call, Some(prepared), "");
                }
                if ended {
                    self.job_ended(*key);
                }
            }
            Token::Init(id) => self.look_after(id, Instant::now()),
        }
    }

    /// Works on a pair and on the rest of the relay at the same time.
    fn with_pair(&mut self, key: u64, work: impl FnOnce(&mut Self, &mut Pair)) {
        let Some(mut pair) = self.pairs.remove(&key) else { return };
        self.working = Some(key);
        work(self, &mut pair);
        self.working = None;
        self.answers.drain(..).for_each(|answer| pair.answer(&answer));
        self.pairs.insert(key, pair);
    }

    /// Closes the pairs that have come to their end. That can come from either side of a pair, and from an
    /// answer of our own that the client did not wait for; so it is looked for in one place, and always.
    fn close_pairs(&mut self) {
        let finished = self.pairs.iter().filter(|(_, pair)| pair.is_finished());
        for key in finished.map(|(&key, _)| key).collect::<Vec<_>>() {
            self.pairs.remove(&key);
            self.lose(key);
        }
    }

    /// Gives a client a frame; a client that is gone needs none.
    fn answer(&mut self, pair: u64, frame: &[u8]) {
        if self.working == Some(pair) {
            self.answers.push(frame.to_vec());
        } else if let Some(pair) = self.pairs.get_mut(&pair) {
            pair.answer(frame);
        }
    }

    fn accept(&mut self) {
        let client = match self.listener.as_ref().map(UnixListener::accept) {
            Some(Ok((client, _))) => client,
            // No descriptor or no memory for it. The client stays in the queue, so the listener stays
            // readable; until another client has gone, looking again is no use.
            Some(Err(error))
                if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) =>
            {
                log::warn(&self.setup.bundle, &self.setup.id, error);
                return std::thread::sleep(std::time::Duration::from_millis(100));
            }
            _ => return,
        };
        // As the stock shim does with its own socket (containerd, pkg/shim/shim_linux.go
        // `UnixSocketRequireSameUser`): it sees us now, and not the client.
        let peer = getsockopt(&client, PeerCredentials);
        let same = peer.is_ok_and(|peer| {
            (peer.uid(), peer.gid()) == (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw())
        });
        let paired = if same { connect(&self.setup.stock) } else { Err(ErrorKind::PermissionDenied.into()) };
        match paired.and_then(|stock| client.set_nonblocking(true).map(|()| stock)) {
            Ok(stock) => {
                let key = self.key();
                self.pairs.insert(key, Pair::new(client, stock));
            }
            // The client sees its connection closed. At the stock shim's end that is all there is to it.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) => {
                log::warn(&self.setup.bundle, &self.setup.id, format!("a client was turned away: {error}"))
            }
        }
    }

    fn listen_to_control(&mut self, buffer: &mut [u8]) {
        // The stock shim has no reason to say anything here.
        if self.control.as_ref().and_then(|control| pair::read(control, buffer)) == Some(0) {
            self.stock_ended();
        }
    }

    /// The stock shim has ended. No client can reach us any more; a share whose container may still run is
    /// kept until the container has ended, which is containerd's next step (it runs `delete`).
    fn stock_ended(&mut self) {
        self.control = None;
        self.listener = None;
        for (path, file) in std::mem::take(&mut self.sockets) {
            if let Err(error) = file.remove(&path) {
                log::warn(&self.setup.bundle, &self.setup.id, error);
            }
        }
        let calls = self.calls.iter().filter(|(_, call)| call.is_preparing());
        for key in calls.map(|(&key, _)| key).collect::<Vec<_>>() {
            self.cancel(key, Code::UNAVAILABLE, "the stock shim has ended");
        }
        let unborn = self.leases.iter().filter(|(_, lease)| lease.init.is_none());
        for id in unborn.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.release(&id);
        }
    }

    fn job_ended(&mut self, key: u64) {
        let Some(job) = self.jobs.remove(&key) else { return };
        let (purpose, how) = job.finish();
        match purpose {
            Purpose::Prepare(call) => self.prepared(call, None, &how),
            Purpose::Prepared => {}
            Purpose::Activate(id) => self.stepped(&id, false),
            Purpose::Release(id) => self.stepped(&id, true),
            Purpose::Reopen(id, call) => {
                self.reopened(call);
                self.stepped(&id, false);
            }
        }
    }
}
