//! What a lease that several containers share is tied to.
//!
//! The processes of such a lease come and go: a pod's containers start one after the other, and several pods
//! may use one claim. So no process ends it. It is in [`State::Claimed`](crate::State::Claimed), a state that
//! versions which know no anchors refuse to read.

use serde::{Deserialize, Serialize};

use crate::{Key, Process};

/// The namespaces of the keys of such leases. No engine has one of these names whose ids have a `/`.
const CLAIM: &str = "claim";
pub(crate) const POD: &str = "pod";
const POOL: &str = "kubernetes";
const SLURM: &str = "slurm";
/// What the id of a node's own lease begins with. No job's id does.
const NODE: &str = "node/";

/// What a lease ends with if that is no process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Anchor {
    /// A claim of Kubernetes: the node's DRA driver gives it back.
    Claim(ResourceClaim),
    /// A pod whose annotations ask for a share of all its containers: it ends with the pod's cgroup.
    Pod(Pod),
    /// The GPUs that the node's DRA driver offers to the cluster. It takes nothing of them and keeps all but
    /// claims off: what kube-scheduler gives out must be there.
    Pool(Pool),
    /// A job of Slurm: its tasks on this node have one share. It ends with the last process of its cgroup.
    Job(Job),
    /// The GPUs that Slurm gives out on this node. It keeps all but jobs off, as a pool does.
    Shards(Shards),
}

/// A node's pool of GPUs (resource.k8s.io/v1, `ResourceSlice.spec.pool`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name, which is the node's.
    pub name: String,
}

/// A pod of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// Its cgroup, relative to the cgroup mount. The kubelet makes it before the pod's first container and
    /// removes it after the last.
    pub cgroup: String,
}

/// A job of Slurm on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number, `SLURM_JOB_ID`.
    pub id: u32,
    /// The cgroup of all its steps, relative to the cgroup mount. Each step's slurmstepd is in it.
    pub cgroup: String,
}

/// A node of Slurm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shards {
    /// Its host name.
    pub node: String,
}

/// A request of a ResourceClaim (resource.k8s.io/v1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceClaim {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The request's name in the claim.
    pub request: String,
    /// The uids of the pods that may use it, `status.reservedFor`.
    pub pods: Vec<String>,
}

/// A container that has joined a lease with an anchor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Its init.
    pub init: Process,
    /// Its cgroup, relative to the cgroup mount.
    pub cgroup: String,
}

impl ResourceClaim {
    /// The key of the lease.
    pub fn key(&self) -> Key {
        Self::key_of(&format!("{}/{}", self.uid, self.request))
    }

    /// The key of the lease of `UID/REQUEST`.
    pub fn key_of(name: &str) -> Key {
        Key { namespace: CLAIM.into(), id: name.into() }
    }
}

impl Pod {
    /// The key of the lease.
    pub fn key(&self) -> Key {
        Key { namespace: POD.into(), id: format!("{}/{}/{}", self.namespace, self.name, self.uid) }
    }
}

impl Pool {
    /// The key of the lease.
    pub fn key(&self) -> Key {
        Key { namespace: POOL.into(), id: format!("{NODE}{}", self.name) }
    }
}

impl Job {
    /// The key of the lease.
    pub fn key(&self) -> Key {
        Self::key_of(self.id)
    }

    /// The key of the lease of the job with this number.
    pub fn key_of(id: u32) -> Key {
        Key { namespace: SLURM.into(), id: format!("job/{id}") }
    }
}

impl Shards {
    /// The key of the lease.
    pub fn key(&self) -> Key {
        Key { namespace: SLURM.into(), id: format!("{NODE}{}", self.node) }
    }
}

impl Key {
    /// Whether it is that of a lease which holds GPUs for what another scheduler sends.
    pub(crate) fn is_pools(&self) -> bool {
        [POOL, SLURM].contains(&&*self.namespace) && self.id.starts_with(NODE)
    }
}

impl Anchor {
    /// The key of the lease.
    pub fn key(&self) -> Key {
        match self {
            Self::Claim(claim) => claim.key(),
            Self::Pod(pod) => pod.key(),
            Self::Pool(pool) => pool.key(),
            Self::Job(job) => job.key(),
            Self::Shards(shards) => shards.key(),
        }
    }

    /// For people: `claim default/training, request gpu` or `pod default/trainer`.
    pub fn words(&self) -> String {
        match self {
            Self::Claim(claim) => {
                format!("claim {}/{}, request {}", claim.namespace, claim.name, claim.request)
            }
            Self::Pod(pod) => format!("pod {}/{}", pod.namespace, pod.name),
            Self::Pool(pool) => format!("the claims of Kubernetes on node {}", pool.name),
            Self::Job(job) => format!("Slurm's job {}", job.id),
            Self::Shards(shards) => format!("the jobs of Slurm on node {}", shards.node),
        }
    }

    /// What to call the lease: `NAMESPACE/NAME`, of a claim with its request.
    pub fn name(&self) -> String {
        match self {
            Self::Claim(claim) => format!("{}/{}/{}", claim.namespace, claim.name, claim.request),
            Self::Pod(pod) => format!("{}/{}", pod.namespace, pod.name),
            Self::Pool(pool) => format!("{POOL}/{}", pool.name),
            Self::Job(job) => format!("{SLURM}/{}", job.id),
            Self::Shards(shards) => format!("{SLURM}/{}", shards.node),
        }
    }
}
