//! What one event costs the front end that records it. `cargo run --release -p fgpu-engine --example events
//! [DIR]`
//!
//! The journal is the machine's own; where there is none, only the file is written.

use std::path::PathBuf;
use std::time::Instant;

use fgpu_engine::config::Config;
use fgpu_engine::events::Events;
use fgpu_spec::{Code, Error};

const EVENTS: u32 = 20_000;

fn main() {
    let folder = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let log_dir = folder.join(format!("fgpu-events-{}", std::process::id()));
    let events = Events::of(&Config { log_dir: log_dir.clone(), ..Config::default() });
    let key = fgpu_allocator::Key { namespace: "moby".into(), id: "3f1c0a9b2d11".repeat(5) };
    let error = Error::new(Code::NoCapacity, "fgpu/fraction=0.5 asks 40504 MiB and 50% of the SMs");
    let start = Instant::now();
    for _ in 0..EVENTS {
        events.refused(Some(&key), &error);
    }
    let each = start.elapsed() / EVENTS;
    println!("an event: {:.1} us ({EVENTS} of them, {})", each.as_secs_f64() * 1e6, log_dir.display());
    if let Err(error) = std::fs::remove_dir_all(&log_dir) {
        eprintln!("{}: {error}", log_dir.display());
    }
}
