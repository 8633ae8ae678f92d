//! One connection of a client, paired with one of our own to the stock shim. Frames go through untouched;
//! only a request that may be ours is held until it is complete.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use containerd_shim::protos::ttrpc::proto::{
    MESSAGE_LENGTH_MAX, MESSAGE_TYPE_REQUEST, MESSAGE_TYPE_RESPONSE, MessageHeader,
};
use nix::poll::PollFlags;

use crate::frame::{HEADER, Piece, Splitter};
use crate::request::{Verdict, verdict};

/// A buffer that has grown beyond this is given back when it is empty.
const KEEP: usize = 4096;

/// Bytes on their way to a socket that does not take them yet. Nothing is read for it until it is empty, so
/// it holds at most what one read gave, one held request and the answers of our own.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes what the socket takes now.
    pub(super) fn flush(&mut self, mut socket: &UnixStream) -> Result<()> {
        while self.sent < self.bytes.len() {
            match socket.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEEP);
    }
}

/// What becomes of a request that may be ours.
#[derive(Debug)]
pub(super) enum Fate {
    /// It goes through like any other.
    Pass(Vec<u8>),
    /// It goes through like any other, and its answer is held.
    Watch(Vec<u8>),
    /// It is taken care of, and answered some time.
    Taken,
    /// This is its answer.
    Answer(Vec<u8>),
}

/// A client and its connection to the stock shim.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) client: UnixStream,
    pub(super) stock: UnixStream,
    /// Client to stock shim.
    up: Splitter,
    /// A request that is not complete, or may still be ours.
    held: Option<Vec<u8>>,
    to_stock: Outbox,
    /// The client said that it sends no more.
    pub(super) up_ended: bool,
    /// Stock shim to client.
    down: Splitter,
    /// The streams whose answers are held.
    watched: Vec<u32>,
    /// An answer that is held and not complete.
    taken: Option<Vec<u8>>,
    /// Answers of our own that wait for the end of a frame that is on its way.
    waiting: Vec<Vec<u8>>,
    to_client: Outbox,
    down_ended: bool,
}

impl Pair {
    pub(super) fn new(client: UnixStream, stock: UnixStream) -> Self {
        Self {
            client,
            stock,
            up: Splitter::default(),
            held: None,
            to_stock: Outbox::default(),
            up_ended: false,
            down: Splitter::default(),
            watched: Vec::new(),
            taken: None,
            waiting: Vec::new(),
            to_client: Outbox::default(),
            down_ended: false,
        }
    }

    /// What to wait for on the client's socket.
    pub(super) fn client_events(&self) -> PollFlags {
        events(!self.up_ended && self.to_stock.is_empty(), !self.to_client.is_empty())
    }

    /// What to wait for on the stock shim's socket.
    pub(super) fn stock_events(&self) -> PollFlags {
        events(!self.down_ended && self.to_client.is_empty(), !self.to_stock.is_empty())
    }

    /// Whether the pair has come to its end: the stock shim has said everything, and the client has it.
    pub(super) fn is_finished(&self) -> bool {
        self.down_ended && self.to_client.is_empty()
    }

    /// Reads from the client once, and hands on.
    pub(super) fn pump_up(&mut self, buffer: &mut [u8], decide: impl FnMut(u32, Vec<u8>) -> Fate) {
        match read(&self.client, buffer) {
            Some(0) => self.up_ended = true,
            Some(count) => self.feed_up(&buffer[..count], decide),
            None => {}
        }
        self.flush_up();
    }

    fn feed_up(&mut self, mut input: &[u8], mut decide: impl FnMut(u32, Vec<u8>) -> Fate) {
        while let Some(piece) = self.up.next(&mut input) {
            match piece {
                Piece::Head(raw, header) => {
                    let length = header.length as usize;
                    let may_be_ours =
                        header.type_ == MESSAGE_TYPE_REQUEST && (1..=MESSAGE_LENGTH_MAX).contains(&length);
                    if may_be_ours {
                        self.held = Some(raw.to_vec());
                    } else {
                        self.to_stock.push(&raw);
                    }
                }
                Piece::Body(bytes) => match &mut self.held {
                    Some(held) => held.extend_from_slice(bytes),
                    None => self.to_stock.push(bytes),
                },
            }
            let Some(held) = self.held.take() else { continue };
            let complete = self.up.at_boundary();
            match verdict(&held[HEADER..]) {
                Verdict::Unknown | Verdict::Ours if !complete => self.held = Some(held),
                Verdict::Unknown | Verdict::Pass => self.to_stock.push(&held),
                Verdict::Ours => {
                    let stream = stream_of(&held);
                    match decide(stream, held) {
                        Fate::Pass(held) => self.to_stock.push(&held),
                        Fate::Watch(held) => {
                            self.to_stock.push(&held);
                            self.watched.push(stream_of(&held));
                        }
                        Fate::Taken => {}
                        Fate::Answer(answer) => self.answer(&answer),
                    }
                }
            }
        }
    }

    /// Sends the stock shim what it takes. When the client has said everything, so have we.
    pub(super) fn flush_up(&mut self) {
        if self.to_stock.flush(&self.stock).is_err() {
            // The stock shim has closed; what it has still said to us is to be read all the same.
            self.to_stock.clear();
            self.up_ended = true;
        }
        if self.up_ended && self.to_stock.is_empty() {
            // Fails if it is closed already, which is as good.
            let _ = self.stock.shutdown(Shutdown::Write);
        }
    }

    /// Reads from the stock shim once, and hands on. `answered` gets the answers that are held.
    pub(super) fn pump_down(&mut self, buffer: &mut [u8], answered: impl FnMut(u32, Vec<u8>)) {
        match read(&self.stock, buffer) {
            Some(0) => {
                self.down_ended = true;
                // The frame that our answers waited for is never to be finished.
                self.waiting.clear();
            }
            Some(count) => self.feed_down(&buffer[..count], answered),
            None => {}
        }
        self.flush_down();
    }

    fn feed_down(&mut self, mut input: &[u8], mut answered: impl FnMut(u32, Vec<u8>)) {
        while let Some(piece) = self.down.next(&mut input) {
            match piece {
                Piece::Head(raw, header) if self.holds(header) => self.taken = Some(raw.to_vec()),
                Piece::Head(raw, _) => self.to_client.push(&raw),
                Piece::Body(bytes) => match &mut self.taken {
                    Some(taken) => taken.extend_from_slice(bytes),
                    None => self.to_client.push(bytes),
                },
            }
            if self.down.at_boundary() {
                if let Some(frame) = self.taken.take() {
                    let stream = stream_of(&frame);
                    self.watched.retain(|watched| *watched != stream);
                    answered(stream, frame);
                }
                self.waiting.drain(..).for_each(|answer| self.to_client.push(&answer));
            }
        }
    }

    /// Whether a frame of the stock shim's is an answer that is held. One that is longer than ttrpc allows is
    /// not kept; it goes through, as it would without us.
    fn holds(&self, header: MessageHeader) -> bool {
        header.type_ == MESSAGE_TYPE_RESPONSE
            && header.length as usize <= MESSAGE_LENGTH_MAX
            && self.watched.contains(&header.stream_id)
    }

    /// Sends the client what it takes.
    pub(super) fn flush_down(&mut self) {
        if self.to_client.flush(&self.client).is_err() {
            self.to_client.clear();
            self.down_ended = true;
            self.up_ended = true;
        }
    }

    /// Gives the client a frame that does not come from the stock shim on this connection.
    pub(super) fn answer(&mut self, frame: &[u8]) {
        if self.down.at_boundary() {
            self.to_client.push(frame);
            self.flush_down();
        } else {
            self.waiting.push(frame.to_vec());
        }
    }
}

/// The stream id in a frame's header.
fn stream_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]])
}

fn events(read: bool, write: bool) -> PollFlags {
    let mut events = PollFlags::empty();
    events.set(PollFlags::POLLIN, read);
    events.set(PollFlags::POLLOUT, write);
    events
}

/// Reads once. `Some(0)`: nothing more will come, by an end or an error. `None`: nothing is there now.
pub(super) fn read(mut socket: &UnixStream, buffer: &mut [u8]) -> Option<usize> {
    match socket.read(buffer) {
        Ok(count) => Some(count),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => None,
        Err(_) => Some(0),
    }
}
