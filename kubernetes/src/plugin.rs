//! What the kubelet asks for: claims are prepared before their pods' first container, and given back after
//! the last.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fgpu_engine::claims::{self as leases, Held};
use fgpu_engine::config::Config;
use futures_util::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client, Resource};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use crate::chosen::Chosen;
use crate::events::Events;
use crate::proto::{Claim, Device, PreparedClaim, UnpreparedClaim};
use crate::{cdi, claims};

/// How long all claims of a call may take: the kubelet gives it 45 s.
const LONGEST: Duration = Duration::from_secs(40);

/// This node's plugin.
pub struct Plugin {
    /// To the API server.
    pub client: Client,
    /// The node's name, which is also that of its pool.
    pub node: String,
    /// Which GPUs are offered if the node has no label that says so.
    pub gpus: Chosen,
    /// Where engines look for CDI files.
    pub cdi: PathBuf,
    /// `fgpu-hook`, as the host sees it.
    pub hook: PathBuf,
    /// Tells of claims that could not be prepared.
    pub events: Events,
    /// A lease and its CDI file change together.
    pub turn: Mutex<()>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Reserves what each claim was given, and says by which CDI devices containers get it.
    pub async fn prepare(self: &Arc<Self>, claims: Vec<Claim>) -> HashMap<String, PreparedClaim> {
        let one = async |claim: Claim| {
            let name = format!("{}/{}", claim.namespace, claim.name);
            match self.prepare_one(&claim).await {
                Ok((devices, own)) => {
                    let own = own.as_secs_f64() * 1e3;
                    info!(
                        "claim {name} is prepared, {} devices, in {own:.1} ms beside the API server",
                        devices.len()
                    );
                    (claim.uid, PreparedClaim { devices, error: String::new() })
                }
                Err(why) => {
                    warn!("claim {name}: {why}");
                    (claim.uid, PreparedClaim { devices: Vec::new(), error: format!("fgpu: {why}") })
                }
            }
        };
        join_all(claims.into_iter().map(one)).await.into_iter().collect()
    }

    /// The devices of a claim, and how long that took without the API server's answer.
    async fn prepare_one(self: &Arc<Self>, claim: &Claim) -> Result<(Vec<Device>, Duration), String> {
        let end = Instant::now() + LONGEST;
        let object = in_time(end, self.claim(claim)).await?;
        let of_claim = object.object_ref(&());
        let (plugin, answered) = (self.clone(), Instant::now());
        let done = in_time(end, blocking(move || plugin.reserve(&object))).await;
        if let Err(why) = &done {
            self.events.failed_to_prepare(of_claim, why);
        }
        Ok((done?, answered.elapsed()))
    }

    /// The claim as the API server has it.
    async fn claim(&self, claim: &Claim) -> Result<ResourceClaim, String> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let object = api.get(&claim.name).await.map_err(|error| format!("the API server: {error}"))?;
        if object.metadata.uid.as_deref() != Some(&claim.uid) {
            return Err("it was deleted, and there is another one of its name".into());
        }
        Ok(object)
    }

    /// Reserves what an allocated claim was given here, writes its CDI file and returns its devices.
    fn reserve(&self, claim: &ResourceClaim) -> Result<Vec<Device>, String> {
        let words = |error: fgpu_spec::Error| error.to_string();
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
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
        let end = Instant::now() + LONGEST;
        let one = async |Claim { uid, namespace, name }| {
            let error = match in_time(end, self.release(uid.clone())).await {
                Ok(count) => {
                    info!("claim {namespace}/{name} is given back, {count} leases");
                    String::new()
                }
                Err(why) => {
                    warn!("claim {namespace}/{name} is not given back: {why}");
                    format!("fgpu: {why}")
                }
            };
            (uid, UnpreparedClaim { error })
        };
        join_all(claims.into_iter().map(one)).await.into_iter().collect()
    }

    /// Gives back what a claim holds, and says how many leases that were.
    ///
    /// # Errors
    /// In words. A container of it may run.
    pub async fn release(self: &Arc<Self>, uid: String) -> Result<usize, String> {
        self.with_config(move |plugin, config| {
            let count = leases::release(config, &uid)?;
            plugin.remove_file(&uid)?;
            Ok(count)
        })
        .await
    }

    /// Gives back one grant of a claim, and says whether it went.
    ///
    /// # Errors
    /// In words.
    pub async fn release_grant(self: &Arc<Self>, held: Held) -> Result<bool, String> {
        self.with_config(move |plugin, config| {
            let released = leases::release_grant(config, &held.nonce)?;
            plugin.remove_unheld_file(config, &held.claim.uid)?;
            Ok(released)
        })
        .await
    }

    /// Removes the CDI file of a claim that holds nothing.
    ///
    /// # Errors
    /// In words.
    pub async fn remove_if_unheld(self: &Arc<Self>, uid: String) -> Result<(), String> {
        self.with_config(move |plugin, config| plugin.remove_unheld_file(config, &uid)).await
    }

    fn remove_unheld_file(&self, config: &Config, uid: &str) -> Result<(), fgpu_spec::Error> {
        match leases::held(config)?.iter().any(|held| held.claim.uid == uid) {
            true => Ok(()),
            false => self.remove_file(uid),
        }
    }

    fn remove_file(&self, uid: &str) -> Result<(), fgpu_spec::Error> {
        cdi::remove(&self.cdi, uid).map_err(|error| fgpu_spec::Error::io("remove from", &self.cdi, &error))
    }

    /// What claims hold on this node.
    ///
    /// # Errors
    /// In words.
    pub async fn held(self: &Arc<Self>) -> Result<Vec<Held>, String> {
        self.with_config(|_, config| leases::held(config)).await
    }

    /// Sets which pods may use what a claim holds.
    ///
    /// # Errors
    /// In words.
    pub async fn set_pods(self: &Arc<Self>, uid: String, pods: Vec<String>) -> Result<(), String> {
        self.with_config(move |_, config| leases::set_pods(config, &uid, &pods)).await
    }

    /// Runs what reads or changes leases, one at a time.
    ///
    /// # Errors
    /// Its error in words.
    pub async fn with_config<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &Config) -> Result<T, fgpu_spec::Error> + Send + 'static,
    ) -> Result<T, String> {
        let plugin = self.clone();
        blocking(move || {
            let _turn = plugin.turn.lock().unwrap_or_else(PoisonError::into_inner);
            Config::load().and_then(|config| work(&plugin, &config)).map_err(|error| error.to_string())
        })
        .await
    }
}

/// Ends a wait for something that goes on.
async fn in_time<T>(end: Instant, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout_at(end, work).await.unwrap_or_else(|_| Err(format!("it took more than {LONGEST:?}")))
}

/// Runs what may wait for a lock or a disk beside the calls.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}
