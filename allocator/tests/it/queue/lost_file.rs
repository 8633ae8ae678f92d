//! The queue when the file of leases is lost, rebuilt, or of another boot.

use super::*;

#[test]
fn a_lost_file_is_queued_up_in_again() {
    let bench = Bench::new(1);
    bench.holds("whole", 1_000_000);
    let mut waiter = bench.queue("waiter", fraction(500_000));
    // As after a rebuild from a file that had lost the line.
    let image = std::fs::read_to_string(bench.node.file()).unwrap();
    assert!(image.contains("\"queue\":["));
    let mut other = Ticket::new(waiter.process);
    std::mem::swap(&mut other, &mut waiter.ticket);
    bench.node.store.queue().leave(&mut other).unwrap();
    assert!(!bench.granted(&mut waiter));
    assert_eq!(bench.order(), ["waiter"]);
}

#[test]
fn a_rebuild_keeps_those_that_wait() {
    let bench = Bench::new(1);
    bench.holds("whole", 1_000_000);
    let gone = bench.queue("gone", fraction(500_000));
    let _stays = bench.queue("stays", fraction(500_000));
    bench.node.kill(gone.process);
    drop(gone);
    let mut bytes = std::fs::read(bench.node.file()).unwrap();
    bytes[30] ^= 1;
    std::fs::write(bench.node.file(), bytes).unwrap();
    let rebuilt = bench.node.store.rebuild(false).unwrap();
    assert_eq!((rebuilt.kept.len(), rebuilt.damaged), (1, 0));
    assert_eq!(bench.order(), ["stays"]);
}

#[test]
fn a_reboot_empties_the_queue() {
    let mut bench = Bench::new(1);
    bench.holds("whole", 1_000_000);
    drop(bench.queue("waits", fraction(500_000)));
    bench.node.reboot(2);
    assert_eq!(bench.order(), [""; 0]);
    bench.holds("new", 1_000_000);
    bench.node.store.reconcile().unwrap();
    assert_eq!(bench.pipes(), 0);
}
