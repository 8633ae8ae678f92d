//! Measures how long after a release the next in the queue has its room.
//!
//! ```text
//! cargo run --release -p fgpu-allocator --example wake -- [WAITERS [DIR]]
//! ```
//!
//! WAITERS (200) processes wait for one whole GPU, below DIR (`/dev/shm`, which is a tmpfs like `/run`). Each
//! gives it back as soon as it has it, so each release is followed by one grant. The order is checked; a line
//! is printed, in ms.

mod node;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fgpu_allocator::{Process, Rules, Store, Ticket, Turn, look_again};
use fgpu_spec::Tier;
use nix::time::{ClockId, clock_gettime};
use node::{applicant, inventory, request};

const WAITER: &str = "FGPU_WAKE_WAITER";

/// CLOCK_MONOTONIC, nanoseconds.
fn now() -> Result<i64, Box<dyn Error>> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

/// Waits for the GPU and gives it back: says `waiting`, then when it had it and when it gave it back.
fn wait(dir: &Path, number: &str) -> Result<(), Box<dyn Error>> {
    let (store, inventory, rules, request) =
        (Store::open(dir)?, inventory(1), Rules::default(), request("1")?);
    let applicant = applicant(Process::current()?, number.parse()?);
    let mut ticket = Ticket::new(applicant.maker);
    let mut has_said = false;
    let lease = loop {
        match store.reserve_or_wait(&inventory, &rules, &request, &[Tier::Quota], &applicant, &mut ticket)? {
            Turn::Granted(lease) => break lease,
            Turn::Waiting { position, .. } => {
                if !has_said {
                    println!("waiting");
                    has_said = true;
                }
                ticket.wait(look_again(position))?;
            }
        }
    };
    let granted = now()?;
    let released = now()?;
    store.release(&lease.grant.nonce)?.ok_or("somebody else released it")?;
    println!("{granted} {released}");
    Ok(())
}

fn line(child: &mut BufReader<std::process::ChildStdout>) -> Result<String, Box<dyn Error>> {
    let mut line = String::new();
    child.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

fn start(dir: &Path, number: u64) -> Result<(Child, BufReader<std::process::ChildStdout>), Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(WAITER, number.to_string()).arg(dir).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
    // One after the other, so that the order is known.
    if line(&mut output)? != "waiting" {
        return Err("a waiter does not wait".into());
    }
    Ok((child, output))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    if let Ok(number) = std::env::var(WAITER) {
        return wait(Path::new(&args.next().ok_or("no directory")?), &number);
    }
    let waiters = args.next().map_or(Ok(200), |text| text.parse())?;
    let parent = args.next().unwrap_or_else(|| "/dev/shm".into());
    let dir = tempfile::Builder::new().prefix("fgpu-wake-").tempdir_in(&parent)?;

    let store = Store::open(dir.path())?;
    let applicant = applicant(Process::current()?, 0);
    let first =
        store.reserve(&inventory(1), &Rules::default(), &request("1")?, &[Tier::Quota], &applicant)?;
    let children = (0..waiters).map(|number| start(dir.path(), number)).collect::<Result<Vec<_>, _>>()?;
    let mut before = now()?;
    store.release(&first.grant.nonce)?.ok_or("somebody else released it")?;
    let mut latencies = Vec::new();
    for (mut child, mut output) in children {
        let times = line(&mut output)?;
        let (granted, released) = times.split_once(' ').ok_or("a waiter failed")?;
        let latency = granted.parse::<i64>()? - before;
        if latency < 0 {
            return Err("somebody overtook".into());
        }
        latencies.push(latency);
        before = released.parse()?;
        child.wait()?;
    }
    latencies.sort_unstable();
    let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100] as f64 / 1e6;
    println!(
        "from a release to the next one's grant: median {:.2} ms, p99 {:.2} ms, most {:.2} ms ({waiters} waiters, {parent})",
        at(50),
        at(99),
        at(100)
    );
    Ok(())
}
