//! `fgpu metrics`: who has which part of which GPU, for Prometheus.
//!
//! ```text
//! inventory.json  health.json  exceeded.json  counters  allocations.json  containers/*/own/ledger
//!        └────────────┴──────────────┴────────────┴───────────┴───────────────────┘
//!                                  Reading            as fgpu status has it; no driver is loaded, nothing is changed
//!                                     │
//!                       page: families and samples    OpenMetrics 1.0, or text format 0.0.4
//!        ┌────────────────────────────┼──────────────────────────┐
//!      stdout                 http: one request on stdin     --textfile, --dcgm-mapping
//! ```
//!
//! A scrape is a process of its own (fgpu-metrics.socket), so a node has no daemon for it.

mod http;
mod mapping;
mod page;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use fgpu_engine::events::counters::{self, Counts};
use fgpu_spec::{Code, Error, Inventory};

use crate::node::Node;
use crate::output::Output;
use crate::status::{self, Status};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Answer one HTTP request that comes on standard input, as fgpu-metrics.socket has it
    #[arg(long, conflicts_with_all = ["textfile", "dcgm_mapping"])]
    http: bool,

    /// Write them to FILE, for the textfile collector of node_exporter
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,

    /// Write who uses each GPU to files in DIR, for dcgm-exporter --hpc-job-mapping-dir DIR
    #[arg(long, value_name = "DIR")]
    dcgm_mapping: Option<PathBuf>,
}

/// What is known of the node at one moment.
struct Reading {
    status: Status,
    /// What the driver had when it was asked last; none if that is not true any more.
    inventory: Option<Inventory>,
    /// When it was asked, seconds since 1970.
    asked: Option<f64>,
    /// None if they cannot be read.
    counts: Option<Counts>,
}

impl Reading {
    /// # Errors
    /// The leases cannot be read.
    fn take(node: &Node) -> Result<Self, Error> {
        let state_dir = &node.config.state_dir;
        let cached = fgpu_driver::cached(&node.config.driver_root, state_dir).ok().flatten();
        let known = cached.clone().ok_or_else(|| Error::new(Code::DriverError, "not known"));
        let (status, _) = status::look(node, known, &mut Default::default())?;
        let written = std::fs::metadata(state_dir.join("inventory.json")).and_then(|file| file.modified());
        let asked = written.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            status,
            inventory: cached,
            asked: asked.map(|time| time.as_secs_f64()),
            counts: counters::read(state_dir).ok(),
        })
    }
}

/// Prints the metrics, or writes them where they are wanted.
///
/// # Errors
/// The leases cannot be read, or a file cannot be written.
pub(crate) fn run(node: &Node, arguments: &Arguments) -> Result<Output, Error> {
    let Arguments { http, textfile, dcgm_mapping } = arguments;
    if *http {
        http::answer(std::io::stdin(), std::io::stdout(), |format| {
            Ok(page::page(&Reading::take(node)?, format))
        })?;
        return Ok(Output::default());
    }
    let reading = Reading::take(node)?;
    if let Some(folder) = dcgm_mapping {
        mapping::write(folder, &reading.status)?;
    }
    if let Some(file) = textfile {
        replace(file, &page::page(&reading, page::Format::Text))?;
    }
    match (textfile, dcgm_mapping) {
        (None, None) => Ok(page::page(&reading, page::Format::Text).into()),
        _ => Ok(Output::default()),
    }
}

/// Makes `text` the content of a file that everybody may read. A reader sees the old one or the new one.
fn replace(path: &Path, text: &str) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |error: &std::io::Error| Error::io("write", path, error);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // node_exporter reads what ends with .prom, dcgm-exporter what is a number.
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = std::fs::File::create(&temporary)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        failed(&error)
    })
}

#[cfg(test)]
mod tests;
