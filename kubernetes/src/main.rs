//! fgpu-dra: the Kubernetes DRA driver of a node (Dynamic Resource Allocation).
//!
//! ```text
//! inventory ─ devices ─ slices ─────────────────► API server ─ kube-scheduler gives shares to claims
//! kubelet ─ serve ─ plugin ─ claims ─ engine ───► a lease for each request of a claim
//!                      └ cdi ───────────────────► a CDI device: fgpu-hook joins containers to the lease
//! fgpu-hook ─ pods ─────────────────────────────► a pod that a claim has got since then
//! API server ─ reconcile ───────────────────────► leases of claims that are gone are given back
//! ```
//!
//! The one part of fgpu that is async. It may stop at any time: what claims hold is in the node's allocator
//! file, and stays.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a program: its modules are not seen from outside")]

mod authority;
mod cdi;
mod chosen;
mod claims;
mod devices;
mod events;
mod health;
mod host;
mod names;
mod plugin;
mod pods;
mod proto;
mod quantity;
mod reconcile;
mod serve;
mod slices;
mod sockets;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use clap::Parser;
use fgpu_engine::claims as leases;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};
use tonic::service::Routes;
use tracing::info;

use crate::chosen::Chosen;
use crate::events::Events;
use crate::health::Healthy;
use crate::names::DRIVER;
use crate::plugin::Plugin;
use crate::proto::PluginInfo;
use crate::serve::{Dra, Registration};
use crate::sockets::Sockets;

/// The Kubernetes DRA driver of a node: publishes the node's GPUs and prepares claims.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The node's name in the cluster
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// How to reach the API server; else the service account of the pod that this runs in
    #[arg(long, value_name = "FILE", env = "FGPU_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where the kubelet looks for the sockets of plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins_registry")]
    registry_dir: PathBuf,
    /// Where this plugin's own socket is
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins/gpu.fgpu.dev")]
    plugin_dir: PathBuf,
    /// Where container engines look for CDI files
    #[arg(long, value_name = "DIR", default_value = "/run/cdi")]
    cdi_dir: PathBuf,
    /// Which GPUs are offered: all, none, or indices and UUIDs; the node's label gpu.fgpu.dev/gpus goes before it
    #[arg(long, env = "FGPU_GPUS", default_value = "all")]
    gpus: Chosen,
    /// fgpu-hook, as engines see it; else the one beside this program
    #[arg(long, value_name = "FILE")]
    hook: Option<PathBuf>,
    /// In a pod with hostPID: puts the programs of the image below this folder of the node, and runs there
    #[arg(long, value_name = "DIR")]
    host: Option<PathBuf>,
    /// Where the pod's service account is open, in a program that has come to the node
    #[arg(long, env = host::ACCOUNT_VARIABLE, hide = true)]
    account: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match (&arguments.host, &arguments.account) {
        // A thread could not enter another mount namespace.
        (Some(to), None) => host::go(to, &arguments.cdi_dir),
        _ => run(arguments),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: Arguments) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_target(false)
        .with_writer(std::io::stderr)
        .init();
    let account = arguments.account.as_deref().map(host::account).transpose()?;
    let config = match (&arguments.kubeconfig, &account) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("{}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        (None, Some(account)) => {
            let file = host::kubeconfig(account)?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        (None, None) => kube::Config::incluster().context("no --kubeconfig, and not in a pod")?,
    };
    let client = kube::Client::try_from(config)?;
    let plugin = Arc::new(Plugin {
        events: Events::new(client.clone(), &arguments.node_name),
        client,
        node: arguments.node_name,
        gpus: arguments.gpus,
        turn: Mutex::new(()),
        cdi: arguments.cdi_dir,
        hook: arguments.hook.map_or_else(|| fgpu_engine::sibling("fgpu-hook"), Ok)?,
    });
    let sockets = Arc::new(Sockets::new(&arguments.plugin_dir, &arguments.registry_dir, std::process::id()));
    // This makes the state directory.
    let state = plugin.with_config(|_, config| leases::held(config).map(|_| config.state_dir.clone())).await;
    let asked = state.map_err(anyhow::Error::msg)?.join(leases::SOCKET);
    cdi::sweep(&plugin.cdi).with_context(|| format!("{}", plugin.cdi.display()))?;
    let hooks = serve::listen(&asked).with_context(|| format!("{}", asked.display()))?;
    let hooks = pods::serve(plugin.clone(), hooks);
    let [endpoint, registration] = sockets.open().context("the sockets for the kubelet")?;
    let services =
        Routes::new(Dra { plugin: plugin.clone() }).add_service(Healthy { plugin: plugin.clone() });
    let dra = serve::serve(endpoint, services);
    let info = PluginInfo {
        r#type: "DRAPlugin".into(),
        name: DRIVER.into(),
        endpoint: sockets.endpoint.display().to_string(),
        supported_versions: vec!["v1.DRAPlugin".into()],
    };
    let service = Registration { info: Arc::new(info), sockets: sockets.clone() };
    let registration = serve::serve(registration, Routes::new(service));
    info!("fgpu-dra {} on node {}", env!("CARGO_PKG_VERSION"), plugin.node);
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let done = tokio::select! {
        failed = dra => failed.context("the plugin's socket"),
        failed = registration => failed.context("the registration's socket"),
        () = slices::keep(plugin.clone()) => Err(anyhow::anyhow!("the watch of the slices has ended")),
        () = reconcile::keep(plugin.clone()) => Ok(()),
        () = hooks => Ok(()),
        () = host::collect(), if account.is_some() => Ok(()),
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    };
    // What claims hold stays.
    sockets.remove();
    done
}
