//! What is written down about a grant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fgpu_spec::{Compute, Grant, GrantedGpu, Nonce, Seen, Tier};
use serde::{Deserialize, Serialize};

use crate::{Anchor, Joined, Process};

/// Names a container: the runtime's namespace (`moby`, `k8s.io`, …) and the id in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The runtime's namespace.
    pub namespace: String,
    /// The container's id.
    pub id: String,
}

impl Key {
    /// `moby/3f1c0a9b2d11`, for people: a long id of hex digits is cut as Docker cuts it, and a namespace
    /// that is a path is left out. Containers of the hook have their bundle for a namespace, those of a
    /// runtime with `--root` its state directory.
    pub fn short(&self) -> String {
        let random = self.id.len() >= 20 && self.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = if random { &self.id[..12] } else { &self.id };
        if self.namespace.starts_with('/') { id.to_owned() } else { format!("{}/{id}", self.namespace) }
    }
}

/// The container and the process that ask for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applicant {
    /// The container.
    pub key: Key,
    /// Its bundle, for people; the lease's life does not depend on it.
    pub bundle: PathBuf,
    /// The process that holds the lease until the container's init is known. It should live at least until
    /// the runtime below it has written `pid_file` or failed.
    pub maker: Process,
    /// Where the runtime will write the init's pid: a plain decimal, runc's `state.json` or crun's `status`.
    /// With the latter two a reused pid is told apart with certainty, as they carry the start time.
    pub pid_file: Option<PathBuf>,
    /// What the lease shall be tied to instead of these processes. Then it is one for all that have this key.
    pub anchor: Option<Anchor>,
}

/// How far a lease has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The share is taken, the container is not known to run yet.
    Reserving,
    /// The container runs.
    Active,
    /// Its anchor is no process, and any number of containers use it ([`Lease::anchor`]).
    Claimed,
    /// The container is gone, and what the driver holds for it is still to be undone
    /// ([`crate::DriverPart::finish`]).
    Releasing,
    /// The container is gone, and its MIG instances are kept for the next request.
    Kept,
}

impl State {
    /// Whether a container has it, or is about to.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Reserving | Self::Active | Self::Claimed)
    }
}

/// A grant and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The container.
    pub key: Key,
    /// What was given.
    pub grant: Grant,
    /// How far it has come.
    pub state: State,
    /// `fgpu/owner`.
    pub owner: Option<String>,
    /// Whether no other lease may be placed on its GPUs.
    pub exclusive: bool,
    /// The container's bundle.
    pub bundle: PathBuf,
    /// The process that made it.
    pub maker: Process,
    /// The PID namespace in which its processes have their pids: the inode behind `/proc/self/ns/pid`
    /// (namespaces(7)). `None` if it is not known.
    pub pid_namespace: Option<u64>,
    /// Where the runtime writes the init's pid.
    pub pid_file: Option<PathBuf>,
    /// The container's init, once known.
    pub init: Option<Process>,
    /// The container's cgroup, relative to the cgroup mount, once known.
    pub cgroup: Option<String>,
    /// When it was made: CLOCK_BOOTTIME in ns.
    pub created: u64,
    /// The same instant as CLOCK_REALTIME in ns. It decides nothing by itself (see `liveness.rs`).
    pub wall: u64,
    /// The request in words.
    pub request: String,
    /// Why the driver's part of it could not be undone yet, in words.
    pub trouble: Option<String>,
    /// Since when it is [`State::Kept`]: CLOCK_BOOTTIME in ns.
    pub kept: Option<u64>,
    /// What it ends with, in [`State::Claimed`] and after it.
    pub anchor: Option<Anchor>,
    /// The containers that have joined a lease with an anchor. An ended one stays until another one joins.
    pub joined: Vec<Joined>,
}

impl Lease {
    /// The cgroups of its containers, relative to the cgroup mount, as far as they are known.
    pub fn cgroups(&self) -> impl Iterator<Item = &str> {
        self.cgroup.iter().chain(self.joined.iter().map(|one| &one.cgroup)).map(String::as_str)
    }
}

/// The administrator's rules, and what of the GPUs no lease tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// `reserve-memory`: bytes of each GPU that are never granted.
    pub reserve_memory: u64,
    /// `[owner."name"] max-gpus`: how many GPUs' worth of shares an owner may hold at a time. A share counts
    /// as the larger of its memory and SM part of the GPU, an exclusive one as a whole GPU.
    pub owner_max_gpus: BTreeMap<String, u32>,
    /// `[mig] use-existing`: whether the administrator's own MIG instances may be used.
    pub mig_use_existing: bool,
    /// What was last seen of each GPU, by UUID. Where `[placement] foreign` is `ignore`, no process outside
    /// of leases is in it.
    pub seen: BTreeMap<String, Seen>,
}

impl Rules {
    /// Memory of a GPU in bytes that is held outside of all leases.
    pub(crate) fn foreign(&self, uuid: &str) -> u64 {
        self.seen.get(uuid).map_or(0, |seen| seen.foreign)
    }

    /// Whether nothing can be granted of a GPU.
    pub(crate) fn is_unhealthy(&self, uuid: &str) -> bool {
        self.seen.get(uuid).is_some_and(|seen| seen.unhealthy.is_some())
    }
}

/// A lease as a line of the file. What every reserve needs to know of all leases comes first; `image/scan.rs`
/// reads that much without a JSON parser.
#[derive(Serialize)]
struct Line<'a> {
    nonce: Nonce,
    state: State,
    gpus: &'a [GrantedGpu],
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    exclusive: bool,
    key: &'a Key,
    request: &'a str,
    tier: Tier,
    compute: Compute,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'a [String],
    maker: Process,
    #[serde(skip_serializing_if = "Option::is_none")]
    init: Option<Process>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid_namespace: Option<u64>,
    created: u64,
    wall: u64,
    bundle: &'a Path,
    /// Relative to the bundle when it is in there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid_file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anchor: Option<&'a Anchor>,
    #[serde(skip_serializing_if = "<[Joined]>::is_empty")]
    joined: &'a [Joined],
}

/// The same, read back.
#[derive(Deserialize)]
struct OwnedLine {
    nonce: Nonce,
    state: State,
    gpus: Vec<GrantedGpu>,
    owner: Option<String>,
    #[serde(default)]
    exclusive: bool,
    key: Key,
    request: String,
    tier: Tier,
    compute: Compute,
    #[serde(default)]
    notes: Vec<String>,
    maker: Process,
    init: Option<Process>,
    pid_namespace: Option<u64>,
    created: u64,
    wall: u64,
    bundle: PathBuf,
    pid_file: Option<PathBuf>,
    cgroup: Option<String>,
    trouble: Option<String>,
    kept: Option<u64>,
    anchor: Option<Anchor>,
    #[serde(default)]
    joined: Vec<Joined>,
}

impl Serialize for Lease {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Line {
            nonce: self.grant.nonce,
            state: self.state,
            gpus: &self.grant.gpus,
            owner: self.owner.as_deref(),
            exclusive: self.exclusive,
            key: &self.key,
            request: &self.request,
            tier: self.grant.tier,
            compute: self.grant.compute,
            notes: &self.grant.notes,
            maker: self.maker,
            init: self.init,
            pid_namespace: self.pid_namespace,
            created: self.created,
            wall: self.wall,
            bundle: &self.bundle,
            pid_file: self.pid_file.as_deref().map(|path| path.strip_prefix(&self.bundle).unwrap_or(path)),
            cgroup: self.cgroup.as_deref(),
            trouble: self.trouble.as_deref(),
            kept: self.kept,
            anchor: self.anchor.as_ref(),
            joined: &self.joined,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let line = OwnedLine::deserialize(deserializer)?;
        let OwnedLine { nonce, tier, compute, gpus, notes, .. } = line;
        Ok(Self {
            key: line.key,
            grant: Grant { nonce, tier, compute, gpus, notes },
            state: line.state,
            owner: line.owner,
            exclusive: line.exclusive,
            pid_file: line.pid_file.map(|path| line.bundle.join(path)),
            bundle: line.bundle,
            maker: line.maker,
            pid_namespace: line.pid_namespace,
            init: line.init,
            cgroup: line.cgroup,
            created: line.created,
            wall: line.wall,
            request: line.request,
            trouble: line.trouble,
            kept: line.kept,
            anchor: line.anchor,
            joined: line.joined,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_for_people_are_short() {
        let random = "3f1c0a9b2d11".to_owned() + &"0".repeat(52);
        for (namespace, id, short) in [
            ("moby", random.as_str(), "moby/3f1c0a9b2d11"),
            ("k8s.io", "web", "k8s.io/web"),
            ("/var/lib/containers/storage/overlay-containers/3f1c/userdata", &random, "3f1c0a9b2d11"),
            ("/srv/runc", "web", "web"),
            ("runc", "facade-of-a-decade-and-more", "runc/facade-of-a-decade-and-more"),
            ("runc", "0123456789abcdef", "runc/0123456789abcdef"),
        ] {
            assert_eq!(Key { namespace: namespace.into(), id: id.into() }.short(), short);
        }
    }
}
