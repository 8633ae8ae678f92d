//! The heads of lines, read without a JSON parser: a reserve looks at every lease of the node.

use fgpu_spec::MigPlacement;
use memchr::{memchr2, memmem};

use super::format::{DIGITS, Damage, NONCE, SEAL, WAITER};
use crate::{Key, Process};

/// The head of a line: what every reserve needs to know of every lease. Strings are as they stand in the
/// file, escapes included; compare them with [`quoted`] ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Summary<'a> {
    pub(crate) state: &'a [u8],
    pub(crate) gpus: Vec<Part<'a>>,
    pub(crate) owner: Option<&'a [u8]>,
    pub(crate) exclusive: bool,
    /// The line from its key on.
    pub(crate) rest: &'a [u8],
}

/// The share of one GPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) uuid: &'a [u8],
    pub(crate) memory: u64,
    pub(crate) cores_ppm: u32,
    pub(crate) slice: Option<Slice<'a>>,
}

/// The slice that a share is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slice<'a> {
    pub(crate) placement: MigPlacement,
    pub(crate) profile: u32,
    pub(crate) stage: &'a [u8],
}

/// A string as it stands in the file, with its quotes.
pub(crate) fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}

/// What [`Summary::rest`] begins with in the lines of this container.
pub(crate) fn key_head(key: &Key) -> Vec<u8> {
    [b"\"key\":{\"namespace\":".as_slice(), &quoted(&key.namespace), b",\"id\":", &quoted(&key.id), b"}"]
        .concat()
}

impl<'a> Summary<'a> {
    /// Scans a line that passed its check.
    pub(crate) fn scan(line: &'a [u8]) -> Result<Self, Damage> {
        scan(line).ok_or(Damage::Unknown)
    }
}

fn scan(line: &[u8]) -> Option<Summary<'_>> {
    let mut rest = line.get(NONCE.len() + 32..)?.strip_prefix(b"\",\"state\":")?;
    let state = string(&mut rest)?;
    rest = rest.strip_prefix(b",\"gpus\":[")?;
    let mut gpus = Vec::with_capacity(1);
    while let Some(mut gpu) = rest.strip_prefix(b"{\"uuid\":") {
        let uuid = string(&mut gpu)?;
        gpu = gpu.strip_prefix(b",\"memory\":")?;
        let memory = number(&mut gpu)?;
        gpu = gpu.strip_prefix(b",\"cores_ppm\":")?;
        let cores_ppm = u32::try_from(number(&mut gpu)?).ok()?;
        let slice = match gpu.strip_prefix(b",\"mig\":{") {
            None => None,
            Some(rest) => {
                gpu = rest;
                Some(slice(&mut gpu)?)
            }
        };
        gpus.push(Part { uuid, memory, cores_ppm, slice });
        close(&mut gpu)?;
        rest = gpu.strip_prefix(b",").unwrap_or(gpu);
    }
    rest = rest.strip_prefix(b"],")?;
    let mut owner = None;
    if let Some(mut tail) = rest.strip_prefix(b"\"owner\":") {
        owner = Some(string(&mut tail)?);
        rest = tail.strip_prefix(b",")?;
    }
    let tail = rest.strip_prefix(b"\"exclusive\":true,");
    Some(Summary { state, gpus, owner, exclusive: tail.is_some(), rest: tail.unwrap_or(rest) })
}

/// Takes what follows the opening brace of a slice, its closing brace included.
fn slice<'a>(rest: &mut &'a [u8]) -> Option<Slice<'a>> {
    let field = |rest: &mut &'a [u8], name: &[u8]| {
        *rest = rest.strip_prefix(name)?;
        u32::try_from(number(rest)?).ok()
    };
    let start = field(rest, b"\"start\":")?;
    let size = field(rest, b",\"size\":")?;
    let profile = field(rest, b",\"profile\":")?;
    *rest = rest.strip_prefix(b",\"stage\":")?;
    let stage = string(rest)?;
    // What else there is: names and ids.
    close(rest)?;
    Some(Slice { placement: MigPlacement { start, size }, profile, stage })
}

/// Takes what is left of an object, its closing brace included.
fn close(rest: &mut &[u8]) -> Option<()> {
    let mut depth = 1;
    while depth > 0 {
        match rest.first()? {
            b'"' => drop(string(rest)?),
            brace => {
                depth = match brace {
                    b'{' => depth + 1,
                    b'}' => depth - 1,
                    _ => depth,
                };
                *rest = &rest[1..];
            }
        }
    }
    Some(())
}

/// What stands before the last field of a waiting request's line that is read here.
const PID_NAMESPACE: &[u8] = br#","pid_namespace":"#;

/// The head of a waiting request's line: what the requests behind it need to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaiterHead<'a> {
    /// Its ticket, as hex digits.
    pub(crate) ticket: &'a [u8],
    pub(crate) process: Process,
    pub(crate) passed: u32,
    /// The tier and the request, as they stand in the file: equal bytes ask the same.
    pub(crate) ask: &'a [u8],
    pub(crate) pid_namespace: Option<u64>,
}

impl<'a> WaiterHead<'a> {
    /// Scans a line that passed its check.
    pub(crate) fn scan(line: &'a [u8]) -> Result<Self, Damage> {
        scan_waiter(line).ok_or(Damage::Unknown)
    }
}

fn scan_waiter(line: &[u8]) -> Option<WaiterHead<'_>> {
    let mut rest = line.strip_prefix(WAITER)?;
    let ticket = rest.get(..32)?;
    rest = rest[32..].strip_prefix(b"\",\"process\":{\"pid\":")?;
    let pid = i32::try_from(number(&mut rest)?).ok()?;
    rest = rest.strip_prefix(b",\"start\":")?;
    let start = number(&mut rest)?;
    rest = rest.strip_prefix(b"},\"since\":")?;
    number(&mut rest)?;
    rest = rest.strip_prefix(b",\"passed\":")?;
    let passed = u32::try_from(number(&mut rest)?).ok()?;
    rest = rest.strip_prefix(b",\"key\":{\"namespace\":")?;
    string(&mut rest)?;
    rest = rest.strip_prefix(b",\"id\":")?;
    string(&mut rest)?;
    rest = rest.strip_prefix(b"},")?;
    let ask = rest.get(..rest.len().checked_sub(SEAL.len() + DIGITS + 2)?)?;
    // Behind the request, if it is there. In a text its quotes would be escaped.
    let at = memmem::rfind(ask, PID_NAMESPACE);
    let pid_namespace = at.and_then(|at| {
        let text = &ask[at + PID_NAMESPACE.len()..];
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        str::from_utf8(&text[..digits]).ok()?.parse().ok()
    });
    Some(WaiterHead { ticket, process: Process { pid, start }, passed, ask, pid_namespace })
}

/// Takes a string, quotes included.
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = *rest;
    let mut at = usize::from(text.first() == Some(&b'"'));
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            *rest = &text[at + 1..];
            return Some(&text[..at + 1]);
        }
        at += 2;
    }
}

/// Takes a number.
pub(super) fn number(rest: &mut &[u8]) -> Option<u64> {
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    let mut value: u64 = 0;
    for digit in &rest[..digits] {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    *rest = &rest[digits..];
    (digits > 0).then_some(value)
}
