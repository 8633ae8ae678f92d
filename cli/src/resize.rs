//! `fgpu resize`: another share for a container that runs.

use std::collections::BTreeMap;
use std::fmt::Write;

use fgpu_allocator::{Lease, Store};
use fgpu_spec::{Code, Error};
use fgpu_wire::ledger;

use crate::node::Node;
use crate::output::Output;
use crate::quantity::{bytes, percent};
use crate::release::{find, full_name};
use crate::share::Share;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    share: Share,

    /// A container id or its beginning, NAMESPACE/ID, or the grant (32 hex digits) of `fgpu status --json`
    #[arg(value_name = "CONTAINER|GRANT")]
    what: String,
}

/// Changes the share.
///
/// # Errors
/// `invalid-request` if no container or more than one is meant; every code of a request.
pub(crate) fn run(node: &Node, arguments: &Arguments) -> Result<Output, Error> {
    let asked: BTreeMap<String, String> = arguments.share.annotations().collect();
    if asked.is_empty() {
        let message = "nothing is to be changed; name --fraction, --memory, --cores or --compute";
        return Err(Error::new(Code::InvalidRequest, message));
    }
    let store = fgpu_hook::store(&node.config)?;
    let leases = store.leases()?;
    let old = find(&leases, &arguments.what)?;
    // A stale inventory is refreshed with the configuration that was named here.
    node.inventory()?;
    let new = fgpu_hook::resize(&node.config, &store, old, &asked)?
        .ok_or_else(|| Error::new(Code::InvalidRequest, format!("{} has ended", full_name(old))))?;
    Ok(Output { text: text(old, &new), warnings: above(&store, &new), ..Output::default() })
}

fn text(old: &Lease, new: &Lease) -> String {
    let mut text = String::new();
    for (old, share) in old.grant.gpus.iter().zip(&new.grant.gpus) {
        let cores = |ppm: u32| percent(ppm.into());
        let _ = writeln!(
            text,
            "{} on {}: {} → {}, {} → {} of the SMs",
            full_name(new),
            share.uuid,
            bytes(old.memory),
            bytes(share.memory),
            cores(old.cores_ppm),
            cores(share.cores_ppm)
        );
    }
    text
}

/// Says where more is in use than is granted now.
fn above(store: &Store, lease: &Lease) -> Vec<String> {
    let file = std::fs::read(store.container_dir(&lease.grant.nonce).join("ledger")).unwrap_or_default();
    let Some(usage) = ledger::usage(&file) else { return Vec::new() };
    let gpus = lease.grant.gpus.iter().enumerate();
    let above = gpus.filter(|(number, share)| usage.total(*number) > share.memory);
    let line = |number, share: &fgpu_spec::GrantedGpu| {
        format!(
            "{} uses {} of {}, more than its share; it gets no more memory until it has freed that",
            full_name(lease),
            bytes(usage.total(number)),
            share.uuid
        )
    };
    above.map(|(number, share)| line(number, share)).collect()
}
