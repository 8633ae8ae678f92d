//! What became of the claims that hold something here: one may be deleted while the kubelet or this plugin is
//! not there to hear of it.
//!
//! A lease is given back only if the API server says that its claim is gone, and no container of it runs. If
//! the API server does not answer, the lease stays.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fgpu_engine::claims::Held;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
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
    let seen: HashSet<_> = held.iter().map(|held| &held.claim.uid).collect();
    for one in &held {
        if let Err(why) = release_if_gone(plugin, one).await {
            failures.push(format!("{}/{}: {why}", one.claim.namespace, one.claim.name));
        }
    }
    // Read after the leases: a file is written after its lease.
    let files = cdi::claims(&plugin.cdi).map_err(|error| error.to_string())?;
    for uid in files.iter().filter(|uid| !seen.contains(uid)) {
        if let Err(why) = plugin.remove_if_unheld(uid.clone()).await {
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
    // This grant, and not one that a claim of the same uid has got meanwhile.
    if plugin.release_grant(held.clone()).await? {
        info!("claim {}/{} is gone, its share is given back", claim.namespace, claim.name);
    }
    Ok(())
}

/// Whether this is the claim with this uid, and something of it is given out on this node.
pub fn is_for(claim: &ResourceClaim, uid: &str, node: &str) -> bool {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_deref()).unwrap_or_default();
    claim.metadata.uid.as_deref() == Some(uid)
        && results.iter().any(|result| result.driver == DRIVER && result.pool == node)
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
