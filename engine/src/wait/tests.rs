use std::collections::BTreeMap;

use fgpu_allocator::Key;
use fgpu_spec::{Defaults, Gpu};

use super::*;

fn inventory() -> Inventory {
    let gpu = r#"{"uuid":"GPU-0","index":0,"minor":0,"model":"Simulated","pci":"","numa":null,
        "total_memory":1073741824,"reserved_memory":0,"mig_enabled":false}"#;
    let gpu: Gpu = serde_json::from_str(gpu).unwrap();
    let text =
        r#"{"version":1,"boot_id":"","root":"/","driver_version":"","cuda_version":0,"gpus":[],"files":[]}"#;
    Inventory { gpus: vec![gpu], ..serde_json::from_str(text).unwrap() }
}

fn request(fraction: &str) -> Request {
    let annotations = BTreeMap::from([("fgpu/fraction".to_owned(), fraction.to_owned())]);
    Request::parse(&annotations, None, &Defaults::default()).unwrap().unwrap()
}

fn applicant(id: &str) -> Applicant {
    let key = Key { namespace: "test".into(), id: id.into() };
    Applicant { key, bundle: "/".into(), maker: Process::current().unwrap(), pid_file: None, anchor: None }
}

/// A node whose only GPU is taken, and what waits for half of it.
fn wait(time: Duration, meanwhile: impl FnOnce(&Store, &Lease) + Send) -> Result<Lease, Error> {
    wait_with(Watch::default(), time, meanwhile)
}

fn wait_with(
    watch: Watch,
    time: Duration,
    meanwhile: impl FnOnce(&Store, &Lease) + Send,
) -> Result<Lease, Error> {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let (inventory, half) = (inventory(), request("0.5"));
    let first = store
        .reserve(&inventory, &Rules::default(), &request("1"), &[Tier::Quota], &applicant("first"))
        .unwrap();
    let ask = Ask { inventory: &inventory, rules: &Rules::default, request: &half, tiers: &[Tier::Quota] };
    let waited = std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(&store, &first));
        until_room(&store, &ask, &applicant("second"), time, &watch, || Ok(()))
    });
    assert_eq!(store.queue().waiters().unwrap(), [], "however it ended, nobody waits");
    waited.map(|(lease, ())| lease)
}

#[test]
fn without_a_wait_there_is_one_attempt() {
    assert_eq!(wait(Duration::ZERO, |_, _| {}).unwrap_err().code, Code::NoCapacity);
}

#[test]
fn a_release_wakes_the_waiter() {
    let lease = wait(Duration::from_secs(3600), |store, first| {
        while store.queue().waiters().unwrap().is_empty() {
            std::thread::yield_now();
        }
        store.release(&first.grant.nonce).unwrap();
    });
    assert_eq!(lease.unwrap().key.id, "second");
}

#[test]
fn the_end_of_one_who_is_watched_ends_the_wait() {
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let watch = Watch::default().process(Process::of(child.id() as i32).unwrap(), "the init");
    let error = wait_with(watch, Duration::from_secs(3600), |store, _| {
        while store.queue().waiters().unwrap().is_empty() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
    });
    assert_eq!(error.unwrap_err().code, Code::Cancelled);
    child.wait().unwrap();
}

#[test]
fn times_have_no_odd_nanoseconds() {
    for (nanos, words) in [(4_999_999_960, "5 s"), (30_000_000_000, "30 s"), (1_500_000_000, "1.5 s")] {
        assert_eq!(in_words(Duration::from_nanos(nanos)), words);
    }
}

#[test]
fn time_runs_out_with_the_place_and_the_reason() {
    let error = wait(Duration::from_millis(5), |_, _| {}).unwrap_err();
    assert_eq!(error.code, Code::TimedOut);
    let start = "no room came within 0.005 s; it was number 1 of 1 in the queue: fgpu/fraction=0.5 asks";
    assert!(error.message.starts_with(start), "{error}");
    assert!(error.message.contains("held by test/first"), "{error}");
}
