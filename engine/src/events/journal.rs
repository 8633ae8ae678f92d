//! systemd's journal: one datagram per entry (systemd.io, "Native Journal Protocol").
//!
//! ```text
//! KEY=value\n                                        a value without a line feed
//! KEY\n, length (u64, little endian), value, \n      any value
//! ```

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use fgpu_spec::Code;

use super::record::{Kind, Record, SCHEMA};

/// Sends an entry.
///
/// # Errors
/// No process listens, or the journal's queue is full: nothing was waited for.
pub(super) fn send(socket: &Path, record: &Record<'_>) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to(&entry(record), socket)?;
    Ok(())
}

/// An entry that is only a message, of which the text is one line.
pub(crate) fn message(priority: &str, text: &str) -> Vec<u8> {
    let text = text.trim_end().replace('\n', " ");
    format!("MESSAGE={text}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=fgpu\n").into_bytes()
}

/// The message's id, by which `journalctl MESSAGE_ID=` finds all events of a kind
/// (systemd.journal-fields(7)). They are random and never change.
fn id(kind: Kind) -> &'static str {
    match kind {
        Kind::Granted => "d5d6f1b32221403198f41116260090bc",
        Kind::Resized => "c1c7c4fecfbe41a9ab73ba61437bbd89",
        Kind::Released => "dedbf1490d0f4f4da80dae86103b51c0",
        Kind::Reconciled => "2c0f0e34dbbc45d2ab0fa0a6a6253144",
        Kind::Lost => "904ab96dc37e4bb3b9b08ca07b1b167e",
        Kind::Refused => "61b090f952984947ae58db3c4575853e",
        Kind::Exceeded => "dad0a502c4304836b5652cbb9d6fb555",
    }
}

/// syslog(3)'s priority: what was refused is worth a look, the rest is how it should be.
fn priority(kind: Kind) -> &'static str {
    match kind {
        Kind::Lost | Kind::Refused | Kind::Exceeded => "4",
        Kind::Reconciled => "5",
        Kind::Granted | Kind::Resized | Kind::Released => "6",
    }
}

fn entry(record: &Record<'_>) -> Vec<u8> {
    let mut entry = Vec::with_capacity(1024);
    let mut field = |key: &str, value: &str| {
        entry.extend_from_slice(key.as_bytes());
        if value.contains('\n') {
            entry.push(b'\n');
            entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            entry.push(b'=');
        }
        entry.extend_from_slice(value.as_bytes());
        entry.push(b'\n');
    };
    field("MESSAGE", &record.message());
    field("MESSAGE_ID", id(record.event));
    field("PRIORITY", priority(record.event));
    field("SYSLOG_IDENTIFIER", "fgpu");
    field("FGPU_SCHEMA", &SCHEMA.to_string());
    field("FGPU_EVENT", record.event.word());
    let named = [
        ("FGPU_NAMESPACE", record.namespace),
        ("FGPU_CONTAINER", record.container),
        // What Docker's own journald driver calls it: one look finds the container's output and its share.
        ("CONTAINER_ID_FULL", record.container),
        ("FGPU_OWNER", record.owner),
        ("FGPU_REQUEST", record.request),
        ("FGPU_CODE", record.code.map(Code::as_str)),
    ];
    for (key, value) in named {
        if let Some(value) = value {
            field(key, value);
        }
    }
    if let Some(grant) = record.grant {
        field("FGPU_GRANT", &grant.to_string());
    }
    if let Some(tier) = record.tier {
        field("FGPU_TIER", &format!("{tier:?}").to_lowercase());
    }
    // A field may be there several times: once for each GPU, in the same order.
    for gpu in record.gpus {
        field("FGPU_GPU", &gpu.uuid);
        field("FGPU_MEMORY", &gpu.memory.to_string());
        field("FGPU_CORES_PPM", &gpu.cores_ppm.to_string());
    }
    entry
}

#[cfg(test)]
mod tests;
