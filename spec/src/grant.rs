//! What the allocator gave.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::MigSlice;

/// Names one grant for ever: 128 random bits, written as 32 hex digits. It is put into the container's
/// annotations as `fgpu/grant`, so that a late release of a container's former life frees nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce(pub [u8; 16]);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({self})")
    }
}

impl FromStr for Nonce {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.as_bytes();
        if text.len() != 32 {
            return Err(());
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(()),
        };
        let mut nonce = [0; 16];
        for (byte, pair) in nonce.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(nonce))
    }
}

impl Serialize for Nonce {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(|()| serde::de::Error::custom("a nonce is 32 lower-case hex digits"))
    }
}

/// How a limit is enforced; DESIGN's "tiers". Ordered from the strongest to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// A hardware slice.
    Mig,
    /// The kernel driver's own memory limit per cgroup.
    Driver,
    /// The quota libraries inside the container.
    Quota,
    /// Not limited at all.
    None,
}

impl Tier {
    /// Whether the quota libraries lie over the driver's in a container of this tier.
    pub fn is_interposed(self) -> bool {
        matches!(self, Self::Driver | Self::Quota)
    }

    /// Whether a grant of this tier has a part in the driver, made after the lease and undone before it goes.
    pub fn has_driver_part(self) -> bool {
        matches!(self, Self::Mig | Self::Driver)
    }
}

/// How the compute share is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    /// Never above the share.
    #[default]
    Cap,
    /// May use idle time, never starves another.
    Share,
    /// Not limited.
    Off,
}

/// The share of one GPU in a grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedGpu {
    /// The GPU's UUID, `GPU-…`.
    pub uuid: String,
    /// Device memory in bytes.
    pub memory: u64,
    /// SM time in parts per million of the whole GPU. 0 with [`Compute::Share`]: none is booked, it has what
    /// others leave.
    pub cores_ppm: u32,
    /// The hardware slice that it is, in the `mig` tier. Several of one grant may be of one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSlice>,
}

/// What the allocator gave to one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The grant's name.
    pub nonce: Nonce,
    /// How the limits are enforced.
    pub tier: Tier,
    /// How the compute share is meant.
    pub compute: Compute,
    /// One share per GPU, in the order in which the container will see them.
    pub gpus: Vec<GrantedGpu>,
    /// What was rounded or chosen for the user, in words; empty when the grant is the request to the letter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
