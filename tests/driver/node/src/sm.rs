//! The time of a GPU's multiprocessors.
//!
//! A kernel is so many nanoseconds of the whole GPU. Within a process kernels run one after the other, in the
//! order of their launches; between processes the GPU is time-sliced evenly, in the limit of very short
//! slices: with `n` processes at work each one's kernels advance by 1/n nanosecond per nanosecond, and a
//! process with nothing to do leaves its part to the others. Nobody serves kernels in the background: whoever
//! launches or waits first brings the GPU up to the present ([`advance`]), which is why waiting means looking
//! again every [`LOOK_NS`].

use core::sync::atomic::{AtomicU64, Ordering};

use crate::account::{Account, NodeLock};
use crate::state::{GpuState, PIECES, SLOTS};
use crate::sys;

/// Longest sleep of a waiter. A process that died is noticed after at most so long.
pub const LOOK_NS: u64 = 2_000_000;
/// Length of the window over which utilisation is measured.
pub const WINDOW_NS: u64 = 100_000_000;

/// A point in the process's sequence of kernels on one GPU, in nanoseconds of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point(pub u64);

/// Appends a kernel of `duration` nanoseconds. The point is where it will have ended.
pub fn submit(account: &Account, gpu: usize, duration: u64) -> Point {
    let lock = account.lock();
    let state = account.gpu(gpu);
    advance(account, state, &lock);
    state.launches[account.slot()].fetch_add(1, Ordering::AcqRel);
    Point(state.submitted[account.slot()].fetch_add(duration, Ordering::AcqRel) + duration)
}

/// Whether the process's kernels up to `point` have run.
pub fn is_done(account: &Account, gpu: usize, point: Point) -> bool {
    remaining(account, gpu, point) == 0
}

/// Waits until the process's kernels up to `point` have run.
pub fn wait(account: &Account, gpu: usize, point: Point) {
    loop {
        match remaining(account, gpu, point) {
            0 => return,
            left => sys::sleep(left.min(LOOK_NS)),
        }
    }
}

/// Up to where the process's kernels had run when somebody last looked.
pub fn served(account: &Account, gpu: usize) -> Point {
    Point(account.gpu(gpu).served[account.slot()].load(Ordering::Acquire))
}

/// When the process's kernels up to `point`, which have run, had ended (monotonic nanoseconds). Between two
/// looks a process's kernels are taken to have gone on evenly; what is older than the course that is kept is
/// said to have ended when that begins.
pub fn ended_at(account: &Account, gpu: usize, point: Point) -> u64 {
    let _lock = account.lock();
    let state = account.gpu(gpu);
    let slot = account.slot();
    let pieces = state.pieces[slot].load(Ordering::Acquire);
    let kept = pieces.min(PIECES as u64);
    let mut ended = 0;
    for number in (pieces - kept..pieces).rev() {
        let piece = &state.course[slot][number as usize % PIECES];
        let load = |cell: &AtomicU64| cell.load(Ordering::Acquire);
        let (from, served_from) = (load(&piece.from), load(&piece.served_from));
        ended = from;
        if served_from < point.0 {
            let (time, served) = (load(&piece.to) - from, load(&piece.served_to) - served_from);
            let part = (point.0 - served_from).min(served);
            return from + (u128::from(time) * u128::from(part) / u128::from(served.max(1))) as u64;
        }
    }
    ended
}

/// Notes that a process was served from one time to another.
fn note(state: &GpuState, slot: usize, times: (u64, u64), served: (u64, u64)) {
    let pieces = state.pieces[slot].load(Ordering::Acquire);
    if let Some(last) = pieces.checked_sub(1) {
        let last = &state.course[slot][last as usize % PIECES];
        let load = |cell: &AtomicU64| cell.load(Ordering::Acquire);
        let goes_on = load(&last.to) == times.0 && load(&last.served_to) == served.0;
        // As evenly as before, to a thousandth: the same course goes on. A waiter looks again and again
        // meanwhile.
        let (time, more_time) = (load(&last.to) - load(&last.from), times.1 - times.0);
        let (part, more) = (load(&last.served_to) - load(&last.served_from), served.1 - served.0);
        let (one, other) = (u128::from(part) * u128::from(more_time), u128::from(more) * u128::from(time));
        if goes_on && one.abs_diff(other) <= u128::from(time) * u128::from(more_time) / 1000 {
            last.to.store(times.1, Ordering::Release);
            last.served_to.store(served.1, Ordering::Release);
            return;
        }
    }
    let piece = &state.course[slot][pieces as usize % PIECES];
    piece.from.store(times.0, Ordering::Release);
    piece.to.store(times.1, Ordering::Release);
    piece.served_from.store(served.0, Ordering::Release);
    piece.served_to.store(served.1, Ordering::Release);
    state.pieces[slot].store(pieces + 1, Ordering::Release);
}

/// Where the kernels that the process has launched will have ended.
pub fn last(account: &Account, gpu: usize) -> Point {
    Point(account.gpu(gpu).submitted[account.slot()].load(Ordering::Acquire))
}

fn remaining(account: &Account, gpu: usize, point: Point) -> u64 {
    let state = account.gpu(gpu);
    let served = &state.served[account.slot()];
    if served.load(Ordering::Acquire) < point.0 {
        let lock = account.lock();
        advance(account, state, &lock);
    }
    point.0.saturating_sub(served.load(Ordering::Acquire))
}

/// Serves the kernels of all living processes up to now.
fn advance(account: &Account, state: &GpuState, _lock: &NodeLock<'_>) {
    let slots = account.mapped().slots();
    let mut left = [0; SLOTS];
    for (slot, left) in left[..slots].iter_mut().enumerate() {
        let pending = pending(state, slot);
        if pending > 0 && account.is_alive(slot) {
            *left = pending;
        }
    }
    let now = sys::now();
    let since = state.advanced_at.load(Ordering::Relaxed);
    let before = left;
    let busy = share(&mut left[..slots], now.saturating_sub(since), |slot, after| {
        state.drained_at[slot].store(since + after, Ordering::Release);
    });
    for slot in 0..slots {
        let time = before[slot] - left[slot];
        if time == 0 {
            continue;
        }
        let served = state.served[slot].fetch_add(time, Ordering::AcqRel);
        let until = if left[slot] == 0 { state.drained_at[slot].load(Ordering::Acquire) } else { now };
        note(state, slot, (since, until.max(since)), (served, served + time));
    }
    state.busy.fetch_add(busy, Ordering::Relaxed);
    state.advanced_at.store(now, Ordering::Relaxed);
    measure(state, now);
}

/// Nanoseconds of kernels that a slot has still to run.
pub(crate) fn pending(state: &GpuState, slot: usize) -> u64 {
    let load = |cell: &AtomicU64| cell.load(Ordering::Acquire);
    load(&state.submitted[slot]).saturating_sub(load(&state.served[slot]))
}

/// Divides `elapsed` evenly among those who have something left, and takes it from what they have left.
/// `drained` is told who has nothing left any more, and after how much of the time. Returns what was used of
/// it.
pub(crate) fn share(left: &mut [u64], elapsed: u64, mut drained: impl FnMut(usize, u64)) -> u64 {
    let mut rest = elapsed;
    loop {
        let active = left.iter().filter(|&&left| left > 0).count() as u64;
        if active == 0 || rest == 0 {
            return elapsed - rest;
        }
        let least = left.iter().copied().filter(|&left| left > 0).min().unwrap_or(0);
        // Less than a nanosecond each: the first ones get one.
        let step = least.min(rest / active).max(1);
        let active = left.iter_mut().enumerate().filter(|(_, left)| **left > 0);
        let ended = active.filter_map(|(slot, left)| {
            let part = step.min(rest);
            *left -= part;
            rest -= part;
            (*left == 0).then_some(slot)
        });
        let ended: alloc::vec::Vec<usize> = ended.collect();
        ended.into_iter().for_each(|slot| drained(slot, elapsed - rest));
    }
}

/// Closes the window of the utilisation when it is over.
fn measure(state: &GpuState, now: u64) {
    let began = state.window_at.load(Ordering::Relaxed);
    let length = now.saturating_sub(began);
    if length < WINDOW_NS {
        return;
    }
    let busy = state.busy.load(Ordering::Relaxed);
    let percent = busy.saturating_sub(state.window_busy.load(Ordering::Relaxed)) * 100 / length;
    state.utilization.store(percent.min(100), Ordering::Relaxed);
    state.window_busy.store(busy, Ordering::Relaxed);
    state.window_at.store(now, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn two_at_work_get_half_each() {
        let mut left = [1000, 0, 1000];
        assert_eq!(share(&mut left, 600, |_, _| ()), 600);
        assert_eq!(left, [700, 0, 700]);
    }

    #[test]
    fn an_early_end_leaves_the_rest_to_the_others() {
        let mut left = [100, 1000];
        let mut ended = (9, 0);
        assert_eq!(share(&mut left, 600, |slot, after| ended = (slot, after)), 600);
        assert_eq!(left, [0, 500]);
        assert_eq!(ended, (0, 200));
    }

    #[test]
    fn an_idle_gpu_uses_nothing() {
        let mut left = [10, 0];
        assert_eq!(share(&mut left, 600, |_, _| ()), 10);
        assert_eq!(left, [0, 0]);
    }

    #[test]
    fn no_nanosecond_is_lost_or_made() {
        let mut left = [5, 5, 5];
        assert_eq!(share(&mut left, 4, |_, _| ()), 4);
        assert_eq!(left.iter().sum::<u64>(), 11);
    }
}
