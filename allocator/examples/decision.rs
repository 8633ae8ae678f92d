//! Measures how long one reserve takes on a large node, and what of it is the decision.
//!
//! ```text
//! cargo run --release -p fgpu-allocator --example decision -- [GPUS [LEASES [ROUNDS [DIR]]]]
//! ```
//!
//! LEASES (4000) are spread over GPUS (64); ROUNDS (2000) times one more is reserved and released again,
//! below DIR (`/dev/shm`, which is a tmpfs like `/run`). The leases are as long as Docker's. A table is
//! printed, in µs.

mod node;

use std::error::Error;
use std::time::{Duration, Instant};

use fgpu_allocator::{Held, Process, Rules, Store, place};
use fgpu_spec::{Policy, Request, Tier};
use node::{applicant, inventory, request};

/// Time by the clock, and that of this thread on a processor: on a machine with other work they differ.
struct Times(Vec<Duration>, Vec<Duration>);

fn on_processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

impl Times {
    fn of<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (clock, processor) = (Instant::now(), on_processor());
        let result = work();
        self.1.push(on_processor().saturating_sub(processor));
        self.0.push(clock.elapsed());
        result
    }

    fn print(mut self, what: &str) {
        for (times, of) in [(&mut self.0, "by the clock"), (&mut self.1, "on a processor")] {
            times.sort();
            let at =
                |part: usize| times[(times.len() * part / 1000).min(times.len() - 1)].as_secs_f64() * 1e6;
            println!("| {what}, {of} | {:.0} | {:.0} | {:.0} | {:.0} |", at(500), at(900), at(990), at(1000));
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let (gpus, leases, rounds) = (number(64)?, number(4000)?, number(2000)?);
    let parent = args.next().unwrap_or_else(|| "/dev/shm".into());
    let dir = tempfile::Builder::new().prefix("fgpu-decision-").tempdir_in(&parent)?;

    let store = Store::open(dir.path())?;
    let (inventory, rules, maker) = (inventory(u32::try_from(gpus)?), Rules::default(), Process::current()?);
    // Room for a few more stays on every GPU.
    let ppm = (950_000 * gpus / leases.max(1)).min(400_000);
    let small = request(&format!("0.{ppm:06}"))?;
    let spread = Request { policy: Policy::Spread, ..small.clone() };
    for number in 0..leases {
        let lease = store.reserve(&inventory, &rules, &spread, &[Tier::Quota], &applicant(maker, number))?;
        store.activate(&lease.grant.nonce, Some(maker), Some(format!("/docker/{}", lease.key.id)))?;
    }
    let bytes = std::fs::metadata(dir.path().join("allocations.json"))?.len();
    println!("{gpus} GPUs, {leases} leases, {bytes} bytes, {rounds} rounds, {parent}\n");
    println!("| µs | median | p90 | p99 | worst |\n|---|---|---|---|---|");

    let (mut reserved, mut released) = (Times(vec![], vec![]), Times(vec![], vec![]));
    for number in 0..rounds {
        let applicant = applicant(maker, leases + number);
        let lease = reserved.of(|| store.reserve(&inventory, &rules, &small, &[Tier::Quota], &applicant))?;
        released.of(|| store.release(&lease.grant.nonce))?.ok_or("somebody else released it")?;
    }
    reserved.print("reserve");
    released.print("release");

    let each = u32::try_from(leases / gpus.max(1))?;
    let held = Held {
        memory: u64::from(each) * (819 << 20).min((80 << 30) / u64::from(each.max(1)) / 2),
        cores_ppm: each * small.cores_ppm,
        leases: each,
        exclusive: false,
    };
    let held = vec![held; inventory.gpus.len()];
    let mut decided = Times(vec![], vec![]);
    for _ in 0..rounds {
        let decision = decided.of(|| place(&inventory, &rules, &small, &held, 0));
        decision.outcome.map_err(|refusal| format!("{refusal:?}"))?;
    }
    decided.print("of it the placement");
    Ok(())
}
