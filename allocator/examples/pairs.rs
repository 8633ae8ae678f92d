//! Measures how many reserve + release pairs a second a store does.
//!
//! ```text
//! cargo run --release -p fgpu-allocator --example pairs -- [LEASES [PROCESSES [PAIRS [DIR]]]]
//! ```
//!
//! LEASES (100) are in the file all the time, PROCESSES (1) do PAIRS (50000) in all, below DIR (`/dev/shm`,
//! which is a tmpfs like `/run`). The leases are as long as Docker's. One line is printed.

mod node;

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use fgpu_allocator::{Process, Rules, Store};
use fgpu_spec::Tier;
use node::{applicant, inventory, request};

const WORKER: &str = "FGPU_PAIRS_WORKER";

/// Does pairs as soon as its standard input ends.
fn work(dir: &Path, pairs: u64) -> Result<(), Box<dyn Error>> {
    let (store, inventory, rules, request) =
        (Store::open(dir)?, inventory(8), Rules::default(), request("0.01")?);
    let maker = Process::current()?;
    println!();
    std::io::stdin().read_to_end(&mut Vec::new())?;
    for number in 0..pairs {
        let lease = store.reserve(&inventory, &rules, &request, &[Tier::Quota], &applicant(maker, number))?;
        store.release(&lease.grant.nonce)?.ok_or("somebody else released it")?;
    }
    Ok(())
}

fn start(dir: &Path, pairs: u64) -> Result<Child, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(WORKER, pairs.to_string())
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // It is ready when it has written its line.
    child.stdout.as_mut().ok_or("no pipe")?.read_exact(&mut [0])?;
    Ok(child)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    if let Ok(pairs) = std::env::var(WORKER) {
        return work(Path::new(&args.next().ok_or("no directory")?), pairs.parse()?);
    }
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let (leases, processes, pairs) = (number(100)?, number(1)?.max(1), number(50_000)?);
    let parent = args.next().unwrap_or_else(|| "/dev/shm".into());
    let dir = tempfile::Builder::new().prefix("fgpu-pairs-").tempdir_in(&parent)?;

    let store = Store::open(dir.path())?;
    let maker = Process::current()?;
    for number in 0..leases {
        let lease = store.reserve(
            &inventory(8),
            &Rules::default(),
            &request("0.01")?,
            &[Tier::Quota],
            &applicant(maker, number),
        )?;
        store.activate(&lease.grant.nonce, Some(maker), Some(format!("/docker/{}", lease.key.id)))?;
    }
    let bytes = std::fs::metadata(dir.path().join("allocations.json")).map_or(0, |file| file.len());

    let mut children =
        (0..processes).map(|_| start(dir.path(), pairs / processes)).collect::<Result<Vec<_>, _>>()?;
    let begin = Instant::now();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    for child in &mut children {
        if !child.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    if store.leases()?.len() as u64 != leases {
        return Err("leases were lost or leaked".into());
    }
    let done = pairs / processes * processes;
    println!(
        "reserve+release: {:.0} pairs/s, {:.1} us an operation ({leases} leases, {bytes} bytes, {processes} \
         process(es), {done} pairs, {parent})",
        done as f64 / seconds,
        seconds * 1e6 / done as f64 / 2.0,
    );
    Ok(())
}
