//! The content of the allocator file: reading, checking and editing it as bytes.
//!
//! ```text
//! {"version":1,"check":"<16 hex>","boot":"<uuid>","leases":[
//! {"nonce":"<32 hex>","state":"active","gpus":[{"uuid":"GPU-…","memory":<bytes>,"cores_ppm":<ppm>}],…,"seal":"<16 hex>"},
//! {…}
//! ],"queue":[
//! {"waiter":"<32 hex>","process":{"pid":…,"start":…},…,"request":{…},"seal":"<16 hex>"}
//! ]}
//! ```
//!
//! It is JSON, one lease per line, and then one waiting request per line if there are any. `check` is XXH3-64
//! over everything behind it, so that a torn, cut or edited file is noticed. `seal` is XXH3-64 over the line
//! before it, seeded with the boot id: a line of a damaged file proves by itself that it is whole and of this
//! boot. Only this module writes the format, so it need not parse JSON to read it: a line's head is scanned
//! ([`scan`]), and the lines that an operation does not concern are copied.
//!
//! # Other versions
//!
//! `testdata/` has a file of each release, which every later one reads. A new field is optional, and stands
//! at the end of its line, share or slice: then nothing else changes, an older release reads past it, and
//! drops it where it writes that line anew. Whatever an older release must not read past gets the next
//! `version`, which it refuses by its number. A line that passed the check and cannot be read
//! ([`Damage::Unknown`]) is a newer release's, too: it is refused, and neither kept aside nor rebuilt.

use std::hash::Hasher;
use std::ops::Range;

use fgpu_spec::Nonce;
use memchr::{memchr_iter, memmem};
use serde::Serialize;
use twox_hash::XxHash3_64;

use crate::{Error, Lease, Waiter};

mod format;
mod scan;

use format::{BOOT, CLOSE, DIGITS, HEAD, NONCE, OPEN, QUEUE, SEAL, WAITER};
pub(crate) use format::{Damage, VERSION};
use scan::number;
pub(crate) use scan::{Part, Summary, WaiterHead, key_head, quoted};

/// Which boot it is, and the seed that ties a line's seal to it.
#[derive(Debug, Clone)]
pub(crate) struct Boot {
    id: String,
    seed: u64,
}

impl Boot {
    pub(crate) fn new(id: String) -> Self {
        Self { seed: XxHash3_64::oneshot(id.as_bytes()), id }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

/// A file that passed its check.
#[derive(Debug, Default)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    lines: Vec<Range<usize>>,
    waiters: Vec<Range<usize>>,
    /// Whether it was written in another boot: then everything in it is void.
    void: bool,
}

impl Image {
    /// Checks a file's bytes. An empty node has no file; that is [`Image::default`].
    pub(crate) fn parse(bytes: Vec<u8>, boot: &Boot) -> Result<Self, Damage> {
        let Some(checked) = checked(&bytes) else {
            return Err(version(&bytes)
                .filter(|&found| found > VERSION)
                .map_or(Damage::Torn, Damage::Version));
        };
        // What passed the check is unchanged since it was written.
        let body = checked.strip_prefix(BOOT).ok_or(Damage::Unknown)?;
        let (of_boot, body) = body.split_at_checked(boot.id.len()).ok_or(Damage::Unknown)?;
        let body =
            body.strip_prefix(OPEN).and_then(|body| body.strip_suffix(CLOSE)).ok_or(Damage::Unknown)?;
        let mut start = bytes.len() - CLOSE.len() - body.len();
        let mut lines = Vec::with_capacity(body.len() / 256);
        let mut leases = None;
        for end in memchr_iter(b'\n', body).map(|at| bytes.len() - CLOSE.len() - body.len() + at) {
            let line = &bytes[start..end];
            if line == QUEUE {
                leases = Some(lines.len());
            } else {
                lines.push(start..end - usize::from(line.ends_with(b",")));
            }
            start = end + 1;
        }
        let waiters = leases.map_or_else(Vec::new, |leases| lines.split_off(leases));
        let void = of_boot != boot.id.as_bytes();
        Ok(Self { bytes, lines, waiters, void })
    }

    /// The lines of the requests that wait, in their order, without separators.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &[u8]> {
        self.waiters.iter().filter(|_| !self.void).map(|range| &self.bytes[range.clone()])
    }

    /// The lines of the leases that hold, without separators.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().filter(|_| !self.void).map(|range| &self.bytes[range.clone()])
    }

    /// The lines of the leases of an earlier boot.
    pub(crate) fn void_lines(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().filter(|_| self.void).map(|range| &self.bytes[range.clone()])
    }

    /// The place of a ticket in the queue, from 0.
    pub(crate) fn place_of(&self, ticket: &Nonce) -> Option<usize> {
        let ticket = ticket.to_string();
        let is =
            |line: &[u8]| line.get(WAITER.len()..).is_some_and(|rest| rest.starts_with(ticket.as_bytes()));
        self.waiters().position(is)
    }

    /// The line with this nonce.
    pub(crate) fn find(&self, nonce: &Nonce) -> Option<&[u8]> {
        let nonce = nonce.to_string();
        self.lines()
            .find(|line| line.get(NONCE.len()..).is_some_and(|rest| rest.starts_with(nonce.as_bytes())))
    }

    /// A file with this one's leases, each as `edit` says, and then `more`. Waiters stay as they are.
    pub(crate) fn rewrite<'a>(
        &'a self,
        boot: &Boot,
        edit: impl FnMut(&'a [u8]) -> Edit<'a>,
        more: Option<&'a [u8]>,
    ) -> Draft<'a> {
        self.rewrite_all(boot, edit, more, |_| Edit::Keep, None)
    }

    /// A file with this one's leases, each as `edit` says, and then `more`; and with waiters changed in the
    /// same way.
    pub(crate) fn rewrite_all<'a>(
        &'a self,
        boot: &Boot,
        edit: impl FnMut(&'a [u8]) -> Edit<'a>,
        more: Option<&'a [u8]>,
        edit_waiter: impl FnMut(&'a [u8]) -> Edit<'a>,
        more_waiter: Option<&'a [u8]>,
    ) -> Draft<'a> {
        let leases = self.edited(&self.lines, edit, more);
        let waiters = self.edited(&self.waiters, edit_waiter, more_waiter);
        Draft::with_queue(boot, leases, waiters)
    }

    fn edited<'a>(
        &'a self,
        lines: &[Range<usize>],
        mut edit: impl FnMut(&'a [u8]) -> Edit<'a>,
        more: Option<&'a [u8]>,
    ) -> Vec<&'a [u8]> {
        let mut parts = Vec::new();
        // Lines that stand next to each other stay so, with what is between them.
        let mut kept: Option<Range<usize>> = None;
        for range in lines.iter().filter(|_| !self.void) {
            match edit(&self.bytes[range.clone()]) {
                Edit::Keep => kept = Some(kept.map_or(range.start, |kept| kept.start)..range.end),
                edit => {
                    parts.extend(kept.take().map(|kept| &self.bytes[kept]));
                    if let Edit::Replace(line) = edit {
                        parts.push(line);
                    }
                }
            }
        }
        parts.extend(kept.map(|kept| &self.bytes[kept]));
        parts.extend(more);
        parts
    }
}

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit<'a> {
    /// It stays.
    Keep,
    /// It goes.
    Drop,
    /// This one takes its place.
    Replace(&'a [u8]),
}

/// A file to be written: its head, and pieces of lines that are not copied together. (Copying costs more than
/// all else that is done outside the kernel, mostly for page faults of fresh memory.)
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    head: Vec<u8>,
    parts: Vec<&'a [u8]>,
}

impl<'a> Draft<'a> {
    /// A file with these leases and an empty queue.
    #[cfg(test)]
    pub(crate) fn new(boot: &Boot, leases: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self::with_queue(boot, leases, [])
    }

    /// A file with these leases, and these requests that wait: lines, or runs of lines with their separators.
    pub(crate) fn with_queue(
        boot: &Boot,
        leases: impl IntoIterator<Item = &'a [u8]>,
        waiters: impl IntoIterator<Item = &'a [u8]>,
    ) -> Self {
        let head = [HEAD, &[b'0'; DIGITS], BOOT, boot.id.as_bytes(), OPEN].concat();
        let mut parts = Vec::with_capacity(8);
        list(&mut parts, leases);
        let mut waiters = waiters.into_iter().peekable();
        if waiters.peek().is_some() {
            parts.extend([QUEUE, b"\n"]);
            list(&mut parts, waiters);
        }
        parts.push(CLOSE);
        let mut draft = Self { head, parts };
        let mut check = XxHash3_64::new();
        check.write(&draft.head[HEAD.len() + DIGITS..]);
        draft.parts.iter().for_each(|part| check.write(part));
        draft.head[HEAD.len()..HEAD.len() + DIGITS].copy_from_slice(&hex(check.finish()));
        draft
    }

    /// The file, piece by piece.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&*self.head).chain(self.parts.iter().copied())
    }

    /// The file in one piece.
    pub(crate) fn concat(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }
}

/// The elements of a JSON array, each on a line of its own; a comma after the last one is not allowed.
fn list<'a>(parts: &mut Vec<&'a [u8]>, lines: impl IntoIterator<Item = &'a [u8]>) {
    let before = parts.len();
    for line in lines {
        if parts.len() > before {
            parts.push(b",\n".as_slice());
        }
        parts.push(line);
    }
    if parts.len() > before {
        parts.push(b"\n");
    }
}

/// What the file's checksum covers, if it is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (check, rest) = bytes.strip_prefix(HEAD)?.split_at_checked(DIGITS)?;
    (*check == hex(XxHash3_64::oneshot(rest))).then_some(rest)
}

/// Whether a file passes its check, whatever it holds.
pub(crate) fn is_whole(bytes: &[u8]) -> bool {
    checked(bytes).is_some()
}

/// The version that a file claims.
fn version(bytes: &[u8]) -> Option<u64> {
    let rest = bytes.strip_prefix(br#"{"version":"#)?;
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// A lease, or a request that waits, as a sealed line.
pub(crate) fn line(entry: &impl Serialize, boot: &Boot) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(1024);
    serde_json::to_writer(&mut out, entry).map_err(Error::Unwritable)?;
    out.pop();
    let seal = hex(XxHash3_64::oneshot_with_seed(boot.seed, &out));
    out.extend_from_slice(SEAL);
    out.extend_from_slice(&seal);
    out.extend_from_slice(b"\"}");
    Ok(out)
}

/// The lease of a line.
pub(crate) fn lease(line: &[u8]) -> Result<Lease, Damage> {
    serde_json::from_slice(line).map_err(|_| Damage::Unknown)
}

/// Whether a line is a lease's.
pub(crate) fn is_lease(line: &[u8]) -> bool {
    line.starts_with(NONCE)
}

/// The waiting request of a line.
pub(crate) fn waiter(line: &[u8]) -> Result<Waiter, Damage> {
    serde_json::from_slice(line).map_err(|_| Damage::Unknown)
}

/// A waiter's line, with its count of passes one higher.
pub(crate) fn passed_once_more(line: &[u8], boot: &Boot) -> Result<Vec<u8>, Damage> {
    let (start, end, passed) = passed_in(line).ok_or(Damage::Unknown)?;
    let seal = line.len() - (SEAL.len() + DIGITS + 2);
    let passed = passed.saturating_add(1).to_string();
    let mut out = [&line[..start], passed.as_bytes(), &line[end..seal]].concat();
    let seal = hex(XxHash3_64::oneshot_with_seed(boot.seed, &out));
    out.extend([SEAL, &seal, b"\"}"].concat());
    Ok(out)
}

/// Where in the line it stands how often it was passed, and how often that is.
fn passed_in(line: &[u8]) -> Option<(usize, usize, u32)> {
    // Nothing before it is text, so it is the first of that name.
    let start = memmem::find(line, b",\"passed\":")? + b",\"passed\":".len();
    let mut rest = line.get(start..)?;
    let passed = u32::try_from(number(&mut rest)?).ok()?;
    Some((start, line.len() - rest.len(), passed))
}

/// The lines of a damaged file that are whole and of this boot, and how many are not.
pub(crate) fn salvage<'a>(bytes: &'a [u8], boot: &Boot) -> (Vec<&'a [u8]>, usize) {
    let (mut whole, mut damaged) = (Vec::new(), 0);
    for line in bytes.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b",").unwrap_or(line);
        let sealed = || {
            let (lease, seal) = line.split_at_checked(line.len().checked_sub(SEAL.len() + DIGITS + 2)?)?;
            let seal = seal.strip_prefix(SEAL)?.strip_suffix(b"\"}")?;
            (*seal == hex(XxHash3_64::oneshot_with_seed(boot.seed, lease))).then_some(line)
        };
        match sealed() {
            Some(line) => whole.push(line),
            None if line.is_empty()
                || line.starts_with(br#"{"version""#)
                || line == b"]}"
                || line == QUEUE => {}
            None => damaged += 1,
        }
    }
    (whole, damaged)
}

fn hex(value: u64) -> [u8; DIGITS] {
    let mut out = [0; DIGITS];
    for (at, digit) in out.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (60 - 4 * at)) as usize & 15];
    }
    out
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod versions;
