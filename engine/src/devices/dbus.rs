//! A D-Bus connection for a few calls of systemd, one after the other
//! (<https://dbus.freedesktop.org/doc/dbus-specification.html>).
//!
//! Every wait ends at the connection's deadline, connecting and authenticating included: what answers may be
//! stuck, and a container's start waits for us. That, no threads and a static program are what the clients to
//! be had do not give together: libcgroups keeps its own to itself, rustbus waits for authentication without
//! end, zbus starts threads.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

mod wire;

pub(super) use wire::{Body, Contents, Reply};

/// A reply that is longer is not one of ours.
const LONGEST: usize = 1 << 20;

/// Where a call goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method<'a> {
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
}

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    deadline: Instant,
    serial: u32,
}

impl Connection {
    /// Connects to a peer, such as systemd's own socket. `None` when no process listens there.
    pub(super) fn to_peer(path: &Path, patience: Duration) -> io::Result<Option<Self>> {
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let deadline = Instant::now() + patience;
        // connect(2) waits while the listener's queue is full, and for no longer than one may send.
        let patience = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX);
        setsockopt(&socket.as_fd(), sockopt::SendTimeout, &TimeVal::milliseconds(patience))?;
        match connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &UnixAddr::new(path)?) {
            Ok(()) => {}
            Err(nix::Error::ENOENT | nix::Error::ECONNREFUSED) => return Ok(None),
            Err(nix::Error::EAGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
        let mut connection = Self { stream: UnixStream::from(socket), deadline, serial: 0 };
        connection.authenticate()?;
        Ok(Some(connection))
    }

    /// Connects to a bus: the same, and says hello. `None` when no process listens there.
    pub(super) fn to_bus(path: &Path, patience: Duration) -> io::Result<Option<Self>> {
        let Some(mut connection) = Self::to_peer(path, patience)? else { return Ok(None) };
        const BUS: &str = "org.freedesktop.DBus";
        let hello =
            Method { destination: BUS, path: "/org/freedesktop/DBus", interface: BUS, member: "Hello" };
        match connection.call(hello, Body::default())? {
            Reply::Return(_) => Ok(Some(connection)),
            Reply::Error { name, text } => Err(io::Error::other(format!("{name}: {text}"))),
        }
    }

    /// Says who we are; the kernel vouches for it.
    ///
    /// All of it in one go: systemd (seen with 257) that finds the end of the handshake and a first call in
    /// one read does not look at the call before more arrives, and so never answers. That the handshake is
    /// accepted shows that it was read to its end, for one write is one read.
    fn authenticate(&mut self) -> io::Result<()> {
        let uid = nix::unistd::geteuid().to_string();
        let hex: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        self.send(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            // Nothing but this line is sent before we call.
            let mut piece = [0; 128];
            let count = self.receive_some(&mut piece)?;
            line.extend(piece.iter().take(count));
            if line.len() > 1024 {
                return Err(invalid("an answer without end"));
            }
        }
        if !line.starts_with(b"OK ") {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it does not take us for who we are"));
        }
        Ok(())
    }

    /// Calls a method and waits for the reply.
    pub(super) fn call(&mut self, method: Method, body: Body) -> io::Result<Reply> {
        self.serial += 1;
        self.send(&wire::call(self.serial, method, &body))?;
        loop {
            let mut start = [0; wire::FIXED];
            self.receive(&mut start)?;
            let rest = wire::length_after(&start)?;
            if rest > LONGEST {
                return Err(invalid("a message of more than a mebibyte"));
            }
            let mut message = start.to_vec();
            message.resize(wire::FIXED + rest, 0);
            self.receive(message.get_mut(wire::FIXED..).unwrap_or_default())?;
            // Signals, such as the bus's welcome, come in between.
            if let Some(reply) = wire::reply(&message, self.serial)? {
                return Ok(reply);
            }
        }
    }

    /// What is left of the patience; a socket takes no time-out of zero.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(self.left()?)?;
            match self.stream.write(bytes) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(error) => again_if_interrupted(error)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            let count = self.receive_some(buffer)?;
            buffer = buffer.get_mut(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// At least one byte.
    fn receive_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(self.left()?)?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => return Ok(count),
                Err(error) => again_if_interrupted(error)?,
            }
        }
    }
}

fn again_if_interrupted(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
        _ => Err(error),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it sends {what}"))
}

#[cfg(test)]
pub(super) mod tests;
