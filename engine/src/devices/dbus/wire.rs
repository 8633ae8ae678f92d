//! Messages as bytes, in the little-endian order of every machine that NVIDIA's driver runs on.
//!
//! ```text
//!  0  'l'  type  flags  version 1
//!  4  u32 length of the body
//!  8  u32 serial
//! 12  u32 length of the fields; the fields: (u8 code, variant) each at a multiple of 8
//!     padding to a multiple of 8; the body
//! ```

use std::io;

use super::{Method, invalid};

/// The part of a message that says how long the rest is.
pub(super) const FIXED: usize = 16;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Codes of header fields.
mod field {
    pub(super) const PATH: u8 = 1;
    pub(super) const INTERFACE: u8 = 2;
    pub(super) const MEMBER: u8 = 3;
    pub(super) const ERROR_NAME: u8 = 4;
    pub(super) const REPLY_SERIAL: u8 = 5;
    pub(super) const DESTINATION: u8 = 6;
    pub(super) const SIGNATURE: u8 = 8;
}

/// What came back.
#[derive(Debug)]
pub(in super::super) enum Reply {
    Return(Contents),
    Error { name: String, text: String },
}

/// A growing piece of a message; alignment counts from its start.
#[derive(Debug, Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    fn pad(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, number: u32) {
        self.pad(4);
        self.0.extend(number.to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend(text.bytes().chain([0]));
    }

    fn signature(&mut self, text: &str) {
        self.0.push(text.len() as u8);
        self.0.extend(text.bytes().chain([0]));
    }

    /// An array whose items start at multiples of `item`; its length leaves out the padding before the first.
    fn array(&mut self, item: usize, write: impl FnOnce(&mut Self)) {
        self.u32(0);
        let length_at = self.0.len() - 4;
        self.pad(item);
        let start = self.0.len();
        write(self);
        let length = (self.0.len() - start) as u32;
        if let Some(place) = self.0.get_mut(length_at..length_at + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }
}

/// The arguments of a call.
#[derive(Debug, Default)]
pub(in super::super) struct Body {
    signature: String,
    bytes: Buffer,
}

impl Body {
    /// `s`
    pub(in super::super) fn string(mut self, text: &str) -> Self {
        self.signature.push('s');
        self.bytes.string(text);
        self
    }

    /// `b`
    pub(in super::super) fn boolean(mut self, value: bool) -> Self {
        self.signature.push('b');
        self.bytes.u32(value.into());
        self
    }

    /// `a(sv)`, each value being an `a(ss)`: properties that are lists of pairs.
    pub(in super::super) fn lists(mut self, properties: &[(&str, &[(String, String)])]) -> Self {
        self.signature.push_str("a(sv)");
        self.bytes.array(8, |bytes| {
            for (name, pairs) in properties {
                bytes.pad(8);
                bytes.string(name);
                bytes.signature("a(ss)");
                bytes.array(8, |bytes| {
                    for (first, second) in *pairs {
                        bytes.pad(8);
                        bytes.string(first);
                        bytes.string(second);
                    }
                });
            }
        });
        self
    }
}

/// A method call as bytes.
pub(super) fn call(serial: u32, method: Method, body: &Body) -> Vec<u8> {
    let mut message = Buffer::default();
    message.0.extend([b'l', METHOD_CALL, 0, 1]);
    message.u32(body.bytes.0.len() as u32);
    message.u32(serial);
    message.array(8, |fields| {
        let mut text = |code, kind: &str, value: &str| {
            fields.pad(8);
            fields.0.push(code);
            fields.signature(kind);
            fields.string(value);
        };
        text(field::PATH, "o", method.path);
        text(field::INTERFACE, "s", method.interface);
        text(field::MEMBER, "s", method.member);
        text(field::DESTINATION, "s", method.destination);
        if !body.signature.is_empty() {
            fields.pad(8);
            fields.0.push(field::SIGNATURE);
            fields.signature("g");
            fields.signature(&body.signature);
        }
    });
    message.pad(8);
    message.0.extend(&body.bytes.0);
    message.0
}

/// How many bytes follow the fixed part.
pub(super) fn length_after(start: &[u8; FIXED]) -> io::Result<usize> {
    let mut reader = Reader { bytes: start, at: 0 };
    if reader.u8()? != b'l' {
        return Err(invalid("a message in another byte order"));
    }
    reader.at = 4;
    let body = reader.u32()? as usize;
    reader.at = 12;
    let fields = reader.u32()? as usize;
    Ok((FIXED + fields).next_multiple_of(8) - FIXED + body)
}

/// Reads a whole message. `None`: it is not the reply to that call.
pub(super) fn reply(message: &[u8], serial: u32) -> io::Result<Option<Reply>> {
    let mut reader = Reader { bytes: message, at: 1 };
    let kind = reader.u8()?;
    reader.at = 12;
    let end = FIXED + reader.u32()? as usize;
    let (mut answers, mut name, mut signature) = (None, String::new(), String::new());
    while reader.at < end {
        reader.pad(8);
        let code = reader.u8()?;
        match (reader.signature()?.as_str(), code) {
            ("u", field::REPLY_SERIAL) => answers = Some(reader.u32()?),
            ("s", field::ERROR_NAME) => name = reader.string()?,
            ("g", field::SIGNATURE) => signature = reader.signature()?,
            ("u", _) => drop(reader.u32()?),
            ("s" | "o", _) => drop(reader.string()?),
            ("g", _) => drop(reader.signature()?),
            _ => return Err(invalid("a header that is not known")),
        }
    }
    if answers != Some(serial) {
        return Ok(None);
    }
    reader.pad(8);
    let body = message.get(reader.at..).unwrap_or_default().to_vec();
    let contents = Contents { signature, body };
    match kind {
        METHOD_RETURN => Ok(Some(Reply::Return(contents))),
        // The text is what a person reads; an error without one is still an error.
        ERROR => Ok(Some(Reply::Error { name, text: contents.string().unwrap_or_default() })),
        _ => Err(invalid("a reply that is none")),
    }
}

/// The values in a reply.
#[derive(Debug)]
pub(in super::super) struct Contents {
    signature: String,
    body: Vec<u8>,
}

impl Contents {
    fn reader(&self, signature: &str) -> io::Result<Reader<'_>> {
        if self.signature != signature {
            return Err(invalid(&format!("`{}` where `{signature}` is due", self.signature)));
        }
        Ok(Reader { bytes: &self.body, at: 0 })
    }

    /// `s`
    fn string(&self) -> io::Result<String> {
        self.reader("s")?.string()
    }

    /// `o`
    pub(in super::super) fn path(&self) -> io::Result<String> {
        self.reader("o")?.string()
    }

    /// A variant of `s`.
    pub(in super::super) fn property(&self) -> io::Result<String> {
        let mut reader = self.reader("v")?;
        reader.expect("s")?;
        reader.string()
    }

    /// A variant of `a(ss)`.
    pub(in super::super) fn property_pairs(&self) -> io::Result<Vec<(String, String)>> {
        let mut reader = self.reader("v")?;
        reader.expect("a(ss)")?;
        let length = reader.u32()? as usize;
        reader.pad(8);
        let end = reader.at + length;
        let mut pairs = Vec::new();
        while reader.at < end {
            reader.pad(8);
            pairs.push((reader.string()?, reader.string()?));
        }
        Ok(pairs)
    }
}

/// Reads what a peer wrote; nothing in it is believed without a look at how long it is.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or_else(|| invalid("a message that is cut off"))?;
        self.at = end;
        Ok(taken)
    }

    fn pad(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn u8(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.pad(4);
        Ok(self.take(4)?.first_chunk().copied().map(u32::from_le_bytes).unwrap_or_default())
    }

    fn text(&mut self, length: usize) -> io::Result<String> {
        let text = String::from_utf8(self.take(length)?.to_vec());
        let text = text.map_err(|_| invalid("text that is not UTF-8"))?;
        self.take(1)?; // the NUL
        Ok(text)
    }

    fn string(&mut self) -> io::Result<String> {
        let length = self.u32()? as usize;
        self.text(length)
    }

    fn signature(&mut self) -> io::Result<String> {
        let length = self.u8()?.into();
        self.text(length)
    }

    fn expect(&mut self, signature: &str) -> io::Result<()> {
        match self.signature()? {
            found if found == signature => Ok(()),
            found => Err(invalid(&format!("`{found}` where `{signature}` is due"))),
        }
    }
}

#[cfg(test)]
pub(in super::super) mod canned;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) {
        if let Some(start) = message.first_chunk() {
            let _ = length_after(start);
        }
        if let Ok(Some(Reply::Return(contents))) = reply(message, 7) {
            let _ = (contents.path(), contents.property(), contents.property_pairs());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_message_can_harm_us(message in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            read(&message);
        }

        /// One that was right until some of it was changed or cut off.
        #[test]
        fn no_damaged_message_can_harm_us(
            changes in proptest::collection::vec(proptest::prelude::any::<(usize, u8)>(), 1..4),
            end in 0usize..400,
        ) {
            let pairs = canned::Canned::Pairs(vec![("/dev/null", "rwm"), ("char-*", "m")]);
            let mut message = canned::reply(7, &pairs);
            // The signal in front of it.
            let signal = FIXED + length_after(message.first_chunk().unwrap()).unwrap();
            message.drain(..signal);
            let length = message.len();
            for (place, byte) in changes {
                message[place % length] = byte;
            }
            message.truncate(end);
            read(&message);
        }
    }
}
