//! ttrpc's framing: a 10-byte header (length, stream id: u32 big endian; type, flags: u8) and a body of
//! `length` bytes (<https://github.com/containerd/ttrpc/blob/main/PROTOCOL.md>).

use containerd_shim::protos::protobuf::{EnumOrUnknown, Message};
use containerd_shim::protos::ttrpc::proto::{Code, MESSAGE_HEADER_LENGTH, MessageHeader, Response, Status};

/// Bytes of a header.
pub(crate) const HEADER: usize = MESSAGE_HEADER_LENGTH;

/// What [`Splitter::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// A whole header, as it was received and parsed. Its body follows.
    Head([u8; HEADER], MessageHeader),
    /// The next bytes of the body.
    Body(&'a [u8]),
}

/// Finds the frames in a byte stream that arrives in arbitrary pieces. It holds back at most nine bytes (of
/// an unfinished header), and there is no input that it refuses: what the lengths say is what it believes, as
/// both ends do.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    head: [u8; HEADER],
    have: usize,
    left: u32,
}

impl Splitter {
    /// Takes the next piece off `input`; `None` when it needs more bytes.
    pub(crate) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        if self.left > 0 {
            if input.is_empty() {
                return None;
            }
            let count = input.len().min(self.left as usize);
            let (body, rest) = input.split_at(count);
            *input = rest;
            self.left -= count as u32;
            return Some(Piece::Body(body));
        }
        let count = input.len().min(HEADER - self.have);
        let (bytes, rest) = input.split_at(count);
        *input = rest;
        self.head[self.have..self.have + count].copy_from_slice(bytes);
        self.have += count;
        if self.have < HEADER {
            return None;
        }
        self.have = 0;
        let header = MessageHeader::from(&self.head[..]);
        self.left = header.length;
        Some(Piece::Head(self.head, header))
    }

    /// Whether every body handed out is complete, so that a frame of one's own may be put in between.
    pub(crate) fn at_boundary(&self) -> bool {
        self.left == 0
    }
}

/// A whole frame: this header with the length of this body.
pub(crate) fn frame(header: MessageHeader, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::from(MessageHeader { length: body.len() as u32, ..header });
    bytes.extend_from_slice(body);
    bytes
}

/// The frame that answers `stream` with an error.
pub(crate) fn error_frame(stream: u32, code: Code, message: &str) -> Vec<u8> {
    let status = Status { code: EnumOrUnknown::new(code), message: message.to_owned(), ..Default::default() };
    let response = Response { status: Some(status).into(), ..Default::default() };
    // Writing two scalars into memory cannot fail, and an empty body would still be an answer.
    let body = response.write_to_bytes().unwrap_or_default();
    frame(MessageHeader::new_response(stream, 0), &body)
}

#[cfg(test)]
mod tests;
