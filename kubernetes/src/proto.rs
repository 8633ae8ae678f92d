//! The messages of the kubelet's plugin interfaces that are used here
//! (k8s.io/kubelet/pkg/apis/pluginregistration/v1 and dra/v1, api.proto), by their field numbers.

use std::collections::HashMap;

/// Who the plugin is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    /// `DRAPlugin`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// The driver.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Path of its socket.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// The gRPC services of `endpoint`.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// What the kubelet made of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    /// Whether it calls the plugin from now on.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A message without fields: `InfoRequest`, `RegistrationStatusResponse`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// Claims to be prepared or unprepared.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Claims {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// A claim by its names.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Claim {
    /// `metadata.namespace`.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// `metadata.uid`.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// `metadata.name`.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// The answer to a prepare, by the claims' uids.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Prepared {
    /// An entry for every claim of the call.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, PreparedClaim>,
}

/// What came of one claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreparedClaim {
    /// Its devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Why it failed; empty if it did not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A device of a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// The requests that it is for.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// The pool that it is of.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Its name there.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// What the engine is to add to the container.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// Which of the device's allocations it is.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// How devices are, of `v1alpha1.DRAResourceHealth` (k8s.io/kubelet/pkg/apis/dra-health/v1alpha1).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Healths {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

/// How a device is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceHealth {
    /// Which one.
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// [`Health`].
    #[prost(enumeration = "Health", tag = "2")]
    pub health: i32,
    /// When it was looked at, in seconds since 1970.
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// After how many seconds without news the kubelet takes it for unknown; 0 is the kubelet's own.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    /// Why it is not healthy.
    #[prost(string, tag = "5")]
    pub message: String,
}

/// A device by its names.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIdentifier {
    /// Its pool.
    #[prost(string, tag = "1")]
    pub pool_name: String,
    /// Its name there.
    #[prost(string, tag = "2")]
    pub device_name: String,
}

/// Whether a device works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Health {
    /// It is not known.
    Unknown = 0,
    /// It does.
    Healthy = 1,
    /// It does not.
    Unhealthy = 2,
}

/// The answer to an unprepare, by the claims' uids.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Unprepared {
    /// An entry for every claim of the call.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, UnpreparedClaim>,
}

/// What came of one claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnpreparedClaim {
    /// Why it failed; empty if it did not.
    #[prost(string, tag = "1")]
    pub error: String,
}
