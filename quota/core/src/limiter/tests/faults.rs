//! What may go wrong: processes that are killed, a file full of rubbish, kernels that wait for others, a new share.

use std::sync::Arc;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_SHARE};
use fgpu_wire::turns::{Board, Said};

use super::contention::percent;
use super::tenant::{MS, Node, Process, S, SHAPES, Shape, Thread, US, start};
use crate::limiter::Stream;

#[test]
fn who_is_killed_takes_no_time_with_him() {
    for (victim, survivor) in SHAPES.into_iter().zip(SHAPES.into_iter().cycle().skip(2)) {
        // Not at one moment, but at many in a turn, and in the middle of whatever it does then.
        for step in 0..12 {
            let at = 300 * MS + step * 2_300 * US;
            let node = Arc::new(Node::new(&[(COMPUTE_SHARE, 700_000), (COMPUTE_SHARE, 300_000)]));
            let process = Process::new(&node, 0, true);
            let mut threads = Vec::new();
            for (actor, thread) in start(&process, victim, 0, 2 * S) {
                node.world.kill(actor, S + at);
                threads.push(thread);
            }
            let undertaker = (node.clone(), process.clone());
            let (_, thread) = node.world.actor(S + at, move |_| {
                undertaker.1.die();
                undertaker.0.end(0);
            });
            threads.push(thread);
            let others = start(&Process::new(&node, 1, true), survivor, 0, S);
            threads.extend(others.into_iter().map(|(_, thread)| thread));
            node.world.run(threads);
            let before = percent(&node, 1, 0, at);
            let after = percent(&node, 1, at + 5 * MS, S);
            assert!((25.0..=38.0).contains(&before), "{victim:?} {survivor:?} {at}: {before:.1} before");
            assert!(after >= 96.0, "{victim:?} {survivor:?} {at}: {after:.1} after");
        }
    }
}

#[test]
fn rubbish_in_the_shared_file_takes_nobodys_share() {
    for (kind, first) in SHAPES.into_iter().enumerate() {
        let node = Arc::new(Node::new(&[(COMPUTE_SHARE, 400_000), (COMPUTE_SHARE, 300_000)]));
        let threads = start(&Process::new(&node, 0, true), first, 0, 2 * S);
        let mut threads: Vec<_> = threads.into_iter().map(|(_, thread)| thread).collect();
        let hostile = node.clone();
        // It says of itself that it is next and busy, and of its neighbour that it has had its part, again and again.
        let (_, thread) = node.world.actor(S, move |actor| {
            while hostile.world.now() < 3 * S {
                let now = hostile.world.now();
                let virtual_time = [0, 0, now, u64::MAX, now % S][kind];
                let said = Said { virtual_time, wants: now + 900 * MS, busy: now + 900 * MS };
                hostile.shelf.say(1, &said);
                let neighbour = [u64::MAX, 0, S, now, 1][kind];
                hostile.shelf.say(0, &Said { virtual_time: neighbour, wants: neighbour, busy: neighbour });
                hostile.world.sleep(actor, 300 * US);
            }
        });
        threads.push(thread);
        node.world.run(threads);
        let got = percent(&node, 0, 0, 2 * S);
        assert!(got >= 37.0, "{first:?}: {got:.1}");
    }
}

#[test]
fn a_kernel_that_waits_for_a_later_one_gets_it() {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        // An hour's kernel stands for one that does not end by itself.
        for launch in 0..4 {
            thread.launch(Stream::Shared(0x1000 + launch * 0x100), 3600 * S);
        }
        assert!(thread.process.node.world.now() < 2 * S, "all of them are let in");
        process.die();
    });
    node.world.run(vec![thread]);
}

#[test]
fn a_new_share_is_heeded_within_a_tenth_of_a_second() {
    for shape in SHAPES {
        let node = Arc::new(Node::new(&[(COMPUTE_CAP, 100_000)]));
        let threads = start(&Process::new(&node, 0, true), shape, 0, 3 * S);
        let mut threads: Vec<_> = threads.into_iter().map(|(_, thread)| thread).collect();
        let host = node.clone();
        let (_, thread) = node.world.actor(2 * S, move |actor| {
            host.containers[0].page.resize(0, 1 << 30, 800_000, COMPUTE_CAP);
            host.world.sleep(actor, S);
            host.containers[0].page.resize(0, 1 << 30, 200_000, COMPUTE_CAP);
        });
        threads.push(thread);
        node.world.run(threads);
        let parts = [(0, S), (S + 100 * MS, 2 * S), (2 * S + 100 * MS, 3 * S)]
            .map(|(from, to)| percent(&node, 0, from, to));
        for (part, expected) in parts.into_iter().zip([10.0, 80.0, 20.0]) {
            assert!((part - expected).abs() <= 3.0, "{shape:?}: {parts:?}");
        }
    }
}

#[test]
fn processes_of_one_container_share_its_share() {
    for shape in [Shape::LargeAndWait, Shape::Small, Shape::Graphs] {
        let node = super::contention::together(&[(COMPUTE_CAP, 400_000, shape, 0, 2 * S)], 3);
        let got = percent(&node, 0, 0, 2 * S);
        assert!((36.0..=43.0).contains(&got), "{shape:?}: {got:.1}");
    }
}

/// All of them wait until nothing is owed; and their kernels end late, since they have the GPU by turns, which must not be taken
/// for kernels that wait for later ones.
#[test]
fn many_processes_do_not_get_past_a_cap_together() {
    for shape in
        [Shape::LargeAndWait, Shape::Small, Shape::Graphs, Shape::Of(40 * MS), Shape::OfAndWait(40 * MS)]
    {
        for percents in [10, 25] {
            let node = super::contention::together(&[(COMPUTE_CAP, percents * 10_000, shape, 0, 6 * S)], 16);
            // At first they learn how long their kernels are, and pay for it.
            let got = percent(&node, 0, 2 * S, 6 * S);
            let most = node.world.lock().gpu.most(0, S, 3 * S, 7 * S);
            let share = f64::from(percents);
            assert!(got >= share * 0.9, "{shape:?} {percents}%: {got:.1}");
            assert!(most <= S / 100 * u64::from(percents + 3), "{shape:?} {percents}%: {most} in a second");
        }
    }
}
