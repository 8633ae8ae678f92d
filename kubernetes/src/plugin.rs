//! What the kubelet asks for: claims are prepared before their pods' first container, and given back after
//! the last.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fgpu_engine::claims::{self as leases, Held};
use fgpu_engine::config::Config;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tracing::{info, warn};

use crate::proto::{Claim, Device, PreparedClaim, UnpreparedClaim};
use crate::{cdi, claims};

/// How long one claim may take: the kubelet gives a call 45 s.
const LONGEST: Duration = Duration::from_secs(40);

/// This node's plugin.
pub struct Plugin {
    /// To the API server.
    pub client: Client,
    /// The node's name, which is also that of its pool.
    pub node: String,
    /// Where engines look for CDI files.
    pub cdi: PathBuf,
    /// `fgpu-hook`, as the host sees it.
    pub hook: PathBuf,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Reserves what each claim was given, and says by which CDI devices containers get it.
    pub async fn prepare(self: &Arc<Self>, claims: Vec<Claim>) -> HashMap<String, PreparedClaim> {
        let mut all = HashMap::new();
        for claim in claims {
            let done = tokio::time::timeout(LONGEST, self.prepare_one(&claim)).await;
            let done = done.unwrap_or_else(|_| Err(format!("it took more than {LONGEST:?}")));
            let name = format!("{}/{}", claim.namespace, claim.name);
            let answer = match done {
                Ok(devices) => {
                    info!("claim {name} is prepared, {} devices", devices.len());
                    PreparedClaim { devices, error: String::new() }
                }
                Err(why) => {
                    warn!("claim {name}: {why}");
                    PreparedClaim { devices: Vec::new(), error: format!("fgpu: {why}") }
                }
            };
            all.insert(claim.uid, answer);
        }
        all
    }

    async fn prepare_one(self: &Arc<Self>, claim: &Claim) -> Result<Vec<Device>, String> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let object = api.get(&claim.name).await.map_err(|error| format!("the API server: {error}"))?;
        if object.metadata.uid.as_deref() != Some(&claim.uid) {
            return Err("it was deleted, and there is another one of its name".into());
        }
        let plugin = self.clone();
        blocking(move || plugin.reserve(&object)).await
    }

    /// Reserves what an allocated claim was given here, writes its CDI file and returns its devices.
    fn reserve(&self, claim: &ResourceClaim) -> Result<Vec<Device>, String> {
        let words = |error: fgpu_spec::Error| error.to_string();
        let config = Config::load().map_err(words)?;
        let inventory = leases::inventory(&config).map_err(words)?;
        let given = claims::given(claim, &self.node, &inventory, config.reserve_memory)?;
        let Some(uid) = given.first().map(|given| given.asked.uid.clone()) else { return Ok(Vec::new()) };
        for one in &given {
            leases::prepare(&config, &one.asked).map_err(words)?;
        }
        let requests: Vec<&str> = given.iter().map(|given| given.asked.request.as_str()).collect();
        cdi::write(&self.cdi, &uid, &requests, &self.hook)
            .map_err(|error| format!("its CDI file in {}: {error}", self.cdi.display()))?;
        let mut devices = Vec::new();
        for one in given {
            let id = cdi::id(&uid, &one.asked.request);
            for (number, result) in one.results.into_iter().enumerate() {
                devices.push(Device {
                    request_names: vec![one.asked.request.clone()],
                    pool_name: result.pool,
                    device_name: result.device,
                    // One hook brings all GPUs of the request.
                    cdi_device_ids: if number == 0 { vec![id.clone()] } else { Vec::new() },
                    share_id: result.share_id,
                });
            }
        }
        Ok(devices)
    }

    /// Gives back what the claims hold. They may be gone already.
    pub async fn unprepare(self: &Arc<Self>, claims: Vec<Claim>) -> HashMap<String, UnpreparedClaim> {
        let mut all = HashMap::new();
        for Claim { uid, namespace, name } in claims {
            let error = match self.release(uid.clone()).await {
                Ok(count) => {
                    info!("claim {namespace}/{name} is given back, {count} leases");
                    String::new()
                }
                Err(why) => {
                    warn!("claim {namespace}/{name} is not given back: {why}");
                    format!("fgpu: {why}")
                }
            };
            all.insert(uid, UnpreparedClaim { error });
        }
        all
    }

    /// Gives back what a claim holds, and says how many leases that were.
    ///
    /// # Errors
    /// In words.
    pub async fn release(self: &Arc<Self>, uid: String) -> Result<usize, String> {
        let plugin = self.clone();
        blocking(move || {
            let config = Config::load().map_err(|error| error.to_string())?;
            let count = leases::release(&config, &uid).map_err(|error| error.to_string())?;
            cdi::remove(&plugin.cdi, &uid).map_err(|error| format!("its CDI file: {error}"))?;
            Ok(count)
        })
        .await
    }

    /// What claims hold on this node.
    ///
    /// # Errors
    /// In words.
    pub async fn held(&self) -> Result<Vec<Held>, String> {
        blocking(|| {
            let config = Config::load().map_err(|error| error.to_string())?;
            leases::held(&config).map_err(|error| error.to_string())
        })
        .await
    }

    /// Sets which pods may use what a claim holds.
    ///
    /// # Errors
    /// In words.
    pub async fn set_pods(&self, uid: String, pods: Vec<String>) -> Result<(), String> {
        blocking(move || {
            let config = Config::load().map_err(|error| error.to_string())?;
            leases::set_pods(&config, &uid, &pods).map_err(|error| error.to_string())
        })
        .await
    }
}

/// Runs what may wait for a lock or a disk beside the calls.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}
