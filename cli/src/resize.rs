//! `fgpu resize`: another share for a container that runs.

use std::collections::BTreeMap;
use std::fmt::Write;

use fgpu_allocator::{Lease, Store};
use fgpu_spec::{Code, Error, Inventory};

use crate::find::{self, find};
use crate::node::Node;
use crate::output::Output;
use crate::quantity::{bytes, cores};
use crate::share::Share;
use crate::used::Used;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    share: Share,

    #[arg(value_name = "CONTAINER", help = find::HELP)]
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
    let store = fgpu_engine::store(&node.config)?;
    let leases = store.leases()?;
    let old = find(&leases, &arguments.what)?;
    // A stale inventory is refreshed with the configuration that was named here.
    let inventory = node.inventory()?;
    let new = fgpu_engine::resize(&node.config, &store, old, &asked)?
        .ok_or_else(|| Error::new(Code::InvalidRequest, format!("{} has ended", old.key.short())))?;
    Ok(Output { text: text(old, &new), warnings: above(&store, &new, &inventory), ..Output::default() })
}

fn text(old: &Lease, new: &Lease) -> String {
    let mut text = String::new();
    let was = old.grant.compute;
    for (old, share) in old.grant.gpus.iter().zip(&new.grant.gpus) {
        let _ = writeln!(
            text,
            "{} on {}: {} → {}, {} → {} of the SMs",
            new.key.short(),
            share.uuid,
            bytes(old.memory),
            bytes(share.memory),
            cores(was, old.cores_ppm),
            cores(new.grant.compute, share.cores_ppm)
        );
    }
    text
}

/// Says where more is in use than is granted now.
fn above(store: &Store, lease: &Lease, inventory: &Inventory) -> Vec<String> {
    let nonce = &lease.grant.nonce;
    let Some(used) = Used::read(&store.container_dir(nonce), lease, &inventory.gpus) else {
        return Vec::new();
    };
    let line = |(number, share): (usize, &fgpu_spec::GrantedGpu)| {
        (used.memory(number) > share.memory).then(|| {
            format!(
                "{} uses {} of {}, more than its share; it gets no more memory until it has freed that",
                lease.key.short(),
                bytes(used.memory(number)),
                share.uuid
            )
        })
    };
    lease.grant.gpus.iter().enumerate().filter_map(line).collect()
}
