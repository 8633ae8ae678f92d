//! What may go wrong: processes that are killed, a file full of rubbish, kernels that wait for others, a new
//! share.

use std::sync::Arc;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_SHARE};
use fgpu_wire::turns::{Board, Statement};

use super::contention::percent;
use super::tenant::{MS, Node, Process, S, SHAPES, Shape, Thread, US, start};
use crate::limiter::{Host, Stream};

#[test]
fn a_killed_container_takes_no_time_from_the_others() {
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
            let undertaker = process.clone();
            let (_, thread) = node.world.actor(S + at, move |_| undertaker.die());
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
fn garbage_in_the_shared_file_takes_no_share() {
    for (kind, first) in SHAPES.into_iter().enumerate() {
        let node = Arc::new(Node::new(&[(COMPUTE_SHARE, 400_000), (COMPUTE_SHARE, 300_000)]));
        let threads = start(&Process::new(&node, 0, true), first, 0, 2 * S);
        let mut threads: Vec<_> = threads.into_iter().map(|(_, thread)| thread).collect();
        let hostile = node.clone();
        // It says of itself that it is next and busy, and of its neighbour that it has had its part, again
        // and again.
        let (_, thread) = node.world.actor(S, move |actor| {
            while hostile.world.now() < 3 * S {
                let now = hostile.world.now();
                let virtual_time = [0, 0, now, u64::MAX, now % S][kind];
                let stake = [0, 1, u64::MAX, 1 << 32, now][kind];
                let said = Statement { virtual_time, wants: now + 900 * MS, busy: now + 900 * MS, stake };
                hostile.shelf.publish(1, &said);
                let neighbour = [u64::MAX, 0, S, now, 1][kind];
                hostile.shelf.publish(
                    0,
                    &Statement { virtual_time: neighbour, wants: neighbour, busy: neighbour, stake },
                );
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
fn a_new_share_takes_effect_within_a_tenth_of_a_second() {
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

/// All of them wait until nothing is owed; and their kernels end late, since they have the GPU by turns,
/// which must not be taken for kernels that wait for later ones.
#[test]
fn many_processes_together_do_not_exceed_a_cap() {
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

/// The length of a first kernel is unknown, so none may run beside another process's.
#[test]
fn the_first_second_of_many_processes_stays_within_the_cap() {
    for length in [40, 100] {
        for shape in
            [Shape::Of(length * MS), Shape::OfAndWait(length * MS), Shape::CopyAndWait(MS, length * MS)]
        {
            for percents in [10, 25, 50] {
                let node =
                    super::contention::together(&[(COMPUTE_CAP, percents * 10_000, shape, 0, 3 * S)], 16);
                let percents = u64::from(percents);
                let most = node.world.lock().gpu.most(0, S, S, 4 * S);
                let bound = S / 100 * percents + length * MS / 100 * (100 - percents) + 10 * MS;
                assert!(most <= bound, "{shape:?} {percents}%: {most} in a second");
                let got = node.time(0, 0, 3 * S);
                assert!(got >= 3 * S / 1000 * percents * 9, "{shape:?} {percents}%: {got}");
            }
        }
    }
}

/// Each of them ends without any other call of the driver than the launch, and so without a chance to
/// count it later.
#[test]
fn a_process_for_each_kernel_is_capped() {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
    let mine = node.clone();
    let (_, thread) = node.world.actor(S, move |actor| {
        while mine.world.now() < 5 * S {
            let thread = Thread::new(&Process::new(&mine, 0, true), actor);
            thread.launch(Stream::Shared(0), 40 * MS);
            // Its own memory tells it of the end.
            thread.compute(45 * MS);
        }
    });
    node.world.run(vec![thread]);
    let got = percent(&node, 0, 0, 4 * S);
    assert!((23.75..=26.0).contains(&got), "{got:.1}");
}

/// A tenant that copies before each kernel launches into a stream that waits.
#[test]
fn kernels_behind_copies_are_charged() {
    for (copy, kernel) in [(MS, 12 * MS), (5 * MS, 5 * MS), (10 * MS, MS)] {
        for percents in [10, 25] {
            let shape = Shape::CopyAndWait(copy, kernel);
            let node = super::contention::together(&[(COMPUTE_CAP, percents * 10_000, shape, 0, 4 * S)], 1);
            let native = kernel as f64 / (kernel + copy) as f64;
            let (got, charged) =
                (percent(&node, 0, 0, 4 * S), node.charged(0) as f64 / (4 * S) as f64 * 100.0);
            let share = f64::from(percents);
            assert!(got <= share + 1.0, "{shape:?} {percents}%: {got:.1}");
            assert!(got >= (share * native * 0.95).min(share), "{shape:?} {percents}%: {got:.1}");
            assert!((charged - got).abs() <= 1.0, "{shape:?} {percents}%: {charged:.1} for {got:.1}");
        }
    }
}

/// Of a burst the first launch is marked at once, the others later; the program asks its own memory whether
/// all have ended.
#[test]
fn bursts_without_a_wait_are_charged() {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        while thread.now() < 5 * S {
            for _ in 0..8 {
                thread.launch(Stream::Shared(0), 200 * US);
            }
            thread.compute(2 * MS);
        }
    });
    node.world.run(vec![thread]);
    let got = percent(&node, 0, 0, 4 * S);
    assert!((23.75..=26.0).contains(&got), "{got:.1}");
}

/// Those that are marked say nothing of the others.
#[test]
fn long_kernels_behind_short_ones_are_charged_without_a_wait() {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        while thread.now() < 6 * S {
            for length in [[20 * US; 3].as_slice(), &[5 * MS; 7]].concat() {
                thread.launch(Stream::Shared(0), length);
            }
            thread.wait_unlimited();
            thread.compute(MS);
        }
    });
    node.world.run(vec![thread]);
    let got = percent(&node, 0, S, 5 * S);
    assert!((23.75..=27.0).contains(&got), "{got:.1}");
}

/// On a busy machine a thread may be held up in the call. It is marked only then, so the call may count as
/// well.
#[test]
fn a_kernel_that_ends_before_its_launch_returns_is_charged() {
    let node = Arc::new(Node::new(&[(COMPUTE_SHARE, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        for _ in 0..100 {
            thread.launch_slowly(Stream::Shared(0), MS, 2 * MS);
        }
        thread.wait();
    });
    node.world.run(vec![thread]);
    let charged = node.charged(0);
    assert!((99 * MS..=202 * MS).contains(&charged), "{charged}");
}

/// The launch is in a callback of the driver, which came while the thread held the lane's lock: nobody
/// records where the work began.
#[test]
fn a_first_launch_that_finds_the_lane_held_is_charged() {
    let node = Arc::new(Node::new(&[(COMPUTE_SHARE, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        let held = thread.process.lane.span.hold(&thread).expect("nobody else is here");
        thread.launch(Stream::Shared(0), 20 * MS);
        drop(held);
        thread.wait();
    });
    node.world.run(vec![thread]);
    let charged = node.charged(0);
    assert!((19 * MS..=21 * MS).contains(&charged), "{charged}");
}

/// As a program does that waits for its data and then for their way to the GPU: neither takes SM time.
#[test]
fn pauses_and_copies_after_a_burst_are_not_charged() {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        while thread.now() < 5 * S {
            for _ in 0..8 {
                thread.launch(Stream::Shared(0), 300 * US);
            }
            thread.compute(20 * MS);
            thread.copy(5 * MS);
            thread.wait();
        }
    });
    node.world.run(vec![thread]);
    let (got, charged) = (percent(&node, 0, 0, 4 * S), node.charged(0) as f64 / (4 * S) as f64 * 100.0);
    assert!(got >= 8.0, "{got:.1}");
    assert!((charged - got).abs() <= 0.5, "{charged:.1} for {got:.1}");
}

/// The program does other work until it destroys the context, so the limiter does not look at it.
#[test]
fn a_context_that_ends_is_charged_for_its_kernels_and_not_for_its_age() {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        for _ in 0..4 {
            thread.launch(Stream::Shared(0), 5 * MS);
            thread.compute(10 * S);
            thread.end_context();
        }
    });
    node.world.run(vec![thread]);
    let charged = node.charged(0);
    assert!((19 * MS..=21 * MS).contains(&charged), "{charged} for {}", 20 * MS);
}

/// The driver waits for what is under way in it.
#[test]
fn kernels_of_a_context_that_ends_at_once_are_charged() {
    for copy in [0, 20 * MS] {
        let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
        let process = Process::new(&node, 0, true);
        let (_, thread) = node.world.actor(S, move |actor| {
            let thread = Thread::new(&process, actor);
            while thread.now() < 11 * S {
                thread.copy(copy);
                thread.launch(Stream::Shared(0), 20 * MS);
                thread.end_context();
            }
        });
        node.world.run(vec![thread]);
        let got = percent(&node, 0, 0, 10 * S);
        assert!((23.75..=26.0).contains(&got), "{copy}: {got:.1}");
    }
}

/// The driver gives the time between two events in a `float` of milliseconds, which after some days cannot
/// tell one kernel from no kernel. Short kernels would be taken for none.
#[test]
fn times_stay_exact_in_a_lane_that_is_at_work_for_days() {
    let node = Arc::new(Node::new(&[(COMPUTE_SHARE, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        thread.launch(Stream::Shared(0), 300 * 3600 * S);
        thread.compute(300 * 3600 * S - S);
        for launch in 0..400 {
            thread.launch(Stream::Shared(0), 5 * MS);
            let average = thread.process.lane.average();
            assert!(launch < 200 || (4 * MS..=6 * MS).contains(&average), "{launch}: {average}");
        }
        thread.wait();
    });
    node.world.run(vec![thread]);
}

/// What it has paid in advance is known to be too much only once it looks again.
#[test]
fn an_idle_process_after_a_long_kernel_does_not_delay_others() {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, 250_000)]));
    let process = Process::new(&node, 0, true);
    let (_, thread) = node.world.actor(S, move |actor| {
        let thread = Thread::new(&process, actor);
        thread.launch(Stream::Shared(0), 20 * S);
        thread.wait();
        thread.launch(Stream::Shared(0), MS);
    });
    let mut threads = vec![thread];
    // By then the long one is paid for.
    let others = start(&Process::new(&node, 0, true), Shape::Small, 82 * S, 92 * S);
    threads.extend(others.into_iter().map(|(_, thread)| thread));
    node.world.run(threads);
    let got = percent(&node, 0, 84 * S, 92 * S);
    assert!((23.75..=26.0).contains(&got), "{got:.1}");
}
