//! What became of the claims that hold something here: pods come and go, and a claim may be deleted while
//! the kubelet or this plugin is not there to hear of it.
//!
//! A lease is given back only if the API server says that its claim is gone. If it does not answer, the lease
//! stays.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fgpu_engine::claims::Held;
use futures_util::StreamExt;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tracing::{info, warn};

use crate::cdi;
use crate::names::DRIVER;
use crate::plugin::Plugin;

/// How often the API server is asked for each claim.
const LOOK: Duration = Duration::from_secs(60);

/// Looks at start and from then on, for ever.
pub async fn keep(plugin: Arc<Plugin>) {
    let mut look = tokio::time::interval(LOOK);
    loop {
        look.tick().await;
        if let Err(why) = reconcile(&plugin).await {
            warn!("claims that are gone keep their shares for now: {why}");
        }
    }
}

/// One claim that cannot be looked at keeps no other from its end.
async fn reconcile(plugin: &Arc<Plugin>) -> Result<(), String> {
    let held = plugin.held().await?;
    let mut failures = Vec::new();
    let mut seen = HashSet::new();
    for one in held.iter().filter(|held| seen.insert(&held.claim.uid)) {
        if let Err(why) = release_if_gone(plugin, one).await {
            failures.push(format!("{}/{}: {why}", one.claim.namespace, one.claim.name));
        }
    }
    // Read after the leases: a file is written after its lease.
    let files = cdi::claims(&plugin.cdi).map_err(|error| error.to_string())?;
    for uid in files.iter().filter(|uid| !seen.contains(uid)) {
        if let Err(why) = remove_if_unheld(plugin, uid).await {
            failures.push(format!("the CDI file of {uid}: {why}"));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

async fn release_if_gone(plugin: &Arc<Plugin>, held: &Held) -> Result<(), String> {
    let claim = &held.claim;
    let api: Api<ResourceClaim> = Api::namespaced(plugin.client.clone(), &claim.namespace);
    let object = api.get_opt(&claim.name).await.map_err(|error| error.to_string())?;
    if object.is_some_and(|object| is_for(&object, &claim.uid, &plugin.node)) {
        return Ok(());
    }
    let count = plugin.release(claim.uid.clone()).await?;
    info!("claim {}/{} is gone, {count} leases are given back", claim.namespace, claim.name);
    Ok(())
}

async fn remove_if_unheld(plugin: &Plugin, uid: &str) -> Result<(), String> {
    if plugin.held().await?.iter().any(|held| held.claim.uid == uid) {
        return Ok(());
    }
    cdi::remove(&plugin.cdi, uid).map_err(|error| error.to_string())
}

/// Whether this is the claim with this uid, and something of it is given out on this node.
fn is_for(claim: &ResourceClaim, uid: &str, node: &str) -> bool {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_deref()).unwrap_or_default();
    claim.metadata.uid.as_deref() == Some(uid)
        && results.iter().any(|result| result.driver == DRIVER && result.pool == node)
}

/// Keeps the pods of each lease as its claim has them: a second pod of a prepared claim comes without a call
/// of the kubelet.
pub async fn follow(plugin: Arc<Plugin>) {
    let api: Api<ResourceClaim> = Api::all(plugin.client.clone());
    let mut claims = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(claim) = claims.next().await {
        let claim = match claim {
            Ok(claim) => claim,
            Err(error) => {
                warn!("claims cannot be watched: {error}");
                continue;
            }
        };
        let Some(uid) = claim.metadata.uid.clone().filter(|uid| is_for(&claim, uid, &plugin.node)) else {
            continue;
        };
        let consumers = claim.status.and_then(|status| status.reserved_for).unwrap_or_default();
        let pods = consumers.into_iter().filter(|user| user.resource == "pods").map(|user| user.uid);
        if let Err(why) = plugin.set_pods(uid, pods.collect()).await {
            warn!("the pods of a claim are those of before: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_another_one_or_gone_or_elsewhere() {
        let claim = |uid: &str, pool: &str, driver: &str| -> ResourceClaim {
            serde_json::from_value(serde_json::json!({
                "metadata": {"uid": uid}, "spec": {},
                "status": {"allocation": {"devices": {"results": [
                    {"request": "gpu", "driver": driver, "pool": pool, "device": "gpu-0"}]}}},
            }))
            .unwrap()
        };
        assert!(is_for(&claim("a", "node1", DRIVER), "a", "node1"));
        assert!(!is_for(&claim("b", "node1", DRIVER), "a", "node1"));
        assert!(!is_for(&claim("a", "node2", DRIVER), "a", "node1"));
        assert!(!is_for(&claim("a", "node1", "x.y"), "a", "node1"));
        let unallocated =
            serde_json::from_value(serde_json::json!({"metadata": {"uid": "a"}, "spec": {}})).unwrap();
        assert!(!is_for(&unallocated, "a", "node1"));
    }
}
