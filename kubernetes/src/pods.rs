//! The pods of claims: a second pod of a prepared claim comes without a call of the kubelet. Its first container's
//! hook asks here, and the API server is asked for the claim's pods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use crate::claims::pods;
use crate::plugin::Plugin;
use crate::reconcile::is_for;

/// Longest uid that is read, bytes.
const LONGEST: u64 = 128;
/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers, for ever.
pub async fn serve(plugin: Arc<Plugin>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let plugin = plugin.clone();
                tokio::spawn(async move {
                    let answered = tokio::time::timeout(PATIENCE, answer(&plugin, connection)).await;
                    if let Err(why) = answered.unwrap_or_else(|_| Err("the API server is slow".into())) {
                        warn!("the pods of a claim are those of before: {why}");
                    }
                });
            }
            Err(error) => {
                warn!("hooks cannot ask for the pods of claims: {error}");
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

async fn answer(plugin: &Arc<Plugin>, mut connection: UnixStream) -> Result<(), String> {
    let mut uid = String::new();
    let read = (&mut connection).take(LONGEST).read_to_string(&mut uid).await;
    read.map_err(|error| error.to_string())?;
    let held = plugin.held().await?;
    let Some(held) = held.into_iter().find(|held| held.claim.uid == uid) else { return Ok(()) };
    let api: Api<ResourceClaim> = Api::namespaced(plugin.client.clone(), &held.claim.namespace);
    let claim = api.get(&held.claim.name).await.map_err(|error| error.to_string())?;
    if is_for(&claim, &uid, &plugin.node) {
        plugin.set_pods(uid, pods(&claim)).await?;
    }
    let _ = connection.write_all(b"\n").await;
    Ok(())
}
