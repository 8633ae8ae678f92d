//! What is recorded of an event.

use std::borrow::Cow;
use std::path::Path;
use std::time::SystemTime;

use fgpu_allocator::{Change, Key, Lease};
use fgpu_spec::{Code, Error, GrantedGpu, Nonce, Tier, escape_for_display};
use rustix::time::{ClockId, clock_gettime};
use serde::{Serialize, Serializer};

/// The version of the records' format.
pub const SCHEMA: u32 = 1;

/// The most that is kept of a text that is not ours, in bytes: a line must not grow with a request.
const LONGEST: usize = 512;

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A container has a share.
    Granted,
    /// It has another.
    Resized,
    /// It was given back.
    Released,
    /// It was taken back from the dead.
    Reconciled,
    /// An administrator gave it up.
    Lost,
    /// A container was told no.
    Refused,
    /// A container uses more than its share.
    Exceeded,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Granted,
        Self::Resized,
        Self::Released,
        Self::Reconciled,
        Self::Lost,
        Self::Refused,
        Self::Exceeded,
    ];

    /// As it stands in the record.
    pub fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Resized => "resized",
            Self::Released => "released",
            Self::Reconciled => "reconciled",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Exceeded => "exceeded",
        }
    }
}

/// One event, in the order of its fields on the line. Memory is in bytes, cores in ppm of a GPU.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    schema: u32,
    /// RFC 3339, UTC.
    time: String,
    pub(super) event: Kind,
    /// Which program of fgpu did it, and its process.
    program: Cow<'static, str>,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) grant: Option<Nonce>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tier: Option<Tier>,
    #[serde(skip_serializing_if = "<[GrantedGpu]>::is_empty")]
    pub(super) gpus: &'a [GrantedGpu],
    #[serde(skip_serializing_if = "<[GrantedGpu]>::is_empty")]
    before: &'a [GrantedGpu],
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "as_text")]
    pub(super) code: Option<Code>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    /// Bytes in use of each of `gpus`, and whether that ended the container.
    #[serde(skip_serializing_if = "<[u64]>::is_empty")]
    used_memory: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<bool>,
    /// The name for people, of the journal's message.
    #[serde(skip)]
    short: Option<String>,
}

impl<'a> Record<'a> {
    /// What the store tells.
    pub(super) fn of(change: Change<'a>) -> Self {
        match change {
            Change::Granted(lease) => Self::of_lease(Kind::Granted, lease),
            Change::Resized { before, after } => {
                Self { before: &before.grant.gpus, ..Self::of_lease(Kind::Resized, after) }
            }
            Change::Released(lease) => Self::ended(Kind::Released, lease),
            Change::Reconciled(lease) => Self::ended(Kind::Reconciled, lease),
            Change::Lost(nonce) => Self { grant: Some(nonce), ..Self::new(Kind::Lost, None) },
        }
    }

    /// A container that did not get what it asked for.
    pub(super) fn refused(container: Option<&'a Key>, error: &'a Error) -> Self {
        Self {
            code: Some(error.code),
            message: Some(clip(&error.message)),
            ..Self::new(Kind::Refused, container)
        }
    }

    /// A container that uses so many bytes of each of its GPUs.
    pub(super) fn exceeded(lease: &'a Lease, used: &'a [u64], stopped: bool) -> Self {
        Self { used_memory: used, stopped: Some(stopped), ..Self::of_lease(Kind::Exceeded, lease) }
    }

    fn of_lease(event: Kind, lease: &'a Lease) -> Self {
        Self {
            grant: Some(lease.grant.nonce),
            owner: lease.owner.as_deref().map(clip),
            request: Some(clip(&lease.request)),
            tier: Some(lease.grant.tier),
            gpus: &lease.grant.gpus,
            ..Self::new(event, Some(&lease.key))
        }
    }

    fn ended(event: Kind, lease: &'a Lease) -> Self {
        let held = boottime().saturating_sub(lease.created) / 1_000_000;
        Self { held_ms: Some(held), ..Self::of_lease(event, lease) }
    }

    fn new(event: Kind, container: Option<&'a Key>) -> Self {
        Self {
            schema: SCHEMA,
            time: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            event,
            program: program(),
            pid: std::process::id(),
            namespace: container.map(|key| clip(&key.namespace)),
            container: container.map(|key| clip(&key.id)),
            grant: None,
            owner: None,
            request: None,
            tier: None,
            gpus: &[],
            before: &[],
            held_ms: None,
            code: None,
            message: None,
            used_memory: &[],
            stopped: None,
            short: container.map(Key::short),
        }
    }

    /// The event as a line of JSON with its end.
    pub(super) fn line(&self) -> String {
        // Every part of it is a string, a number or a list of them: it can always be encoded.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }

    /// The event in words, in one line.
    pub(super) fn message(&self) -> String {
        let who = self.short.as_deref().map_or_else(|| "a container".to_owned(), escape_for_display);
        let what = match self.event {
            Kind::Granted => format!("{who} is granted {}", shares(self.gpus)),
            Kind::Resized => format!("{who} has {} instead of {}", shares(self.gpus), shares(self.before)),
            Kind::Released => format!("{who} gave back {}", shares(self.gpus)),
            Kind::Reconciled => format!("{who} is gone, freed {}", shares(self.gpus)),
            Kind::Lost => "a grant was given up in a rebuild".to_owned(),
            Kind::Refused => {
                let code = self.code.map(Code::as_str).unwrap_or_default();
                let message = self.message.unwrap_or_default();
                format!("{who} is refused: {code}: {message}")
            }
            Kind::Exceeded => {
                let used = self.used_memory.iter().map(|bytes| format!("{} MiB", bytes >> 20));
                let end = if self.stopped == Some(true) { ", and is stopped" } else { "" };
                let used = used.collect::<Vec<_>>().join(", ");
                format!("{who} uses {used} and was granted {}{end}", shares(self.gpus))
            }
        };
        match self.request {
            Some(request) => format!("{what} ({})", escape_for_display(request)),
            None => what,
        }
    }
}

fn as_text<S: Serializer>(code: &Option<Code>, serializer: S) -> Result<S::Ok, S::Error> {
    code.map(Code::as_str).serialize(serializer)
}

fn shares(gpus: &[GrantedGpu]) -> String {
    let share = |gpu: &GrantedGpu| {
        let memory = gpu.memory >> 20;
        match f64::from(gpu.cores_ppm) / 10_000.0 {
            0.0 => format!("{memory} MiB of {}", gpu.uuid),
            percent => format!("{memory} MiB and {percent}% of {}", gpu.uuid),
        }
    };
    gpus.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// The beginning of a text.
fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

/// The program's name, as it was called.
fn program() -> Cow<'static, str> {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy();
    Cow::Owned(clip(&name).to_owned())
}

/// CLOCK_BOOTTIME in ns, the clock of [`Lease::created`].
fn boottime() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, rest) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(rest.unwrap_or(0))
}
