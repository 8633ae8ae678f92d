//! A GPU that several processes use: each one's kernels run one after the other, the processes in slices of
//! time.

use std::collections::VecDeque;

/// How long a process has the GPU while others wait, nanoseconds.
const SLICE: u64 = 2_000_000;

enum Work {
    Kernel(u64),
    /// As long, on an engine of its own: what comes after it waits.
    Copy(u64),
    Record(usize),
}

#[derive(Default)]
struct Process {
    container: usize,
    queue: VecDeque<Work>,
    /// Nanoseconds of kernels in the queue, and how many.
    left: u64,
    kernels: usize,
}

/// Its clock is the caller's: [`advance`](Gpu::advance).
#[derive(Default)]
pub(super) struct Gpu {
    now: u64,
    processes: Vec<Process>,
    /// Whose slice it is, and what is left of it.
    slice: (usize, u64),
    /// When each event came; `None`: under way.
    events: Vec<Option<u64>>,
    /// When kernels of which container ran: from, to.
    pub(super) served: Vec<(usize, u64, u64)>,
}

impl Gpu {
    pub(super) fn process(&mut self, container: usize) -> usize {
        self.processes.push(Process { container, ..Process::default() });
        self.processes.len() - 1
    }

    pub(super) fn event(&mut self) -> usize {
        self.events.push(Some(0));
        // 0 is no event.
        self.events.len()
    }

    pub(super) fn launch(&mut self, process: usize, nanoseconds: u64) {
        let process = &mut self.processes[process];
        process.queue.push_back(Work::Kernel(nanoseconds));
        process.left += nanoseconds;
        process.kernels += 1;
    }

    pub(super) fn copy(&mut self, process: usize, nanoseconds: u64) {
        let process = &mut self.processes[process];
        process.queue.push_back(Work::Copy(nanoseconds));
        process.left += nanoseconds;
        process.kernels += 1;
    }

    /// Kernels and copies that a process has launched and that have not ended.
    pub(super) fn depth(&self, process: usize) -> usize {
        self.processes[process].kernels
    }

    pub(super) fn record(&mut self, process: usize, event: usize) {
        self.events[event - 1] = None;
        self.processes[process].queue.push_back(Work::Record(event));
        self.run_records(process);
    }

    pub(super) fn came(&self, event: usize) -> Option<u64> {
        self.events.get(event.checked_sub(1)?).copied().flatten()
    }

    /// Nanoseconds of kernels and copies that a process has still to run.
    pub(super) fn left(&self, process: usize) -> u64 {
        self.processes[process].left
    }

    /// The process has died: the driver takes its work off the GPU.
    pub(super) fn end(&mut self, process: usize) {
        let process = &mut self.processes[process];
        process.queue.clear();
        (process.left, process.kernels) = (0, 0);
    }

    fn run_records(&mut self, process: usize) {
        while let Some(Work::Record(event)) = self.processes[process].queue.front() {
            self.events[event - 1] = Some(self.now);
            self.processes[process].queue.pop_front();
        }
    }

    pub(super) fn advance(&mut self, to: u64) {
        while self.now < to {
            let count = self.processes.len();
            let has_work = |process: &Process| !process.queue.is_empty();
            let (mut turn, mut slice) = self.slice;
            if slice == 0 || turn >= count || !has_work(&self.processes[turn]) {
                let next = (1..=count).map(|step| (turn + step) % count);
                let Some(next) = next.into_iter().find(|&next| has_work(&self.processes[next])) else {
                    break;
                };
                (turn, slice) = (next, SLICE);
            }
            let is_alone = self.processes.iter().filter(|process| has_work(process)).count() == 1;
            let process = &mut self.processes[turn];
            let (left, is_kernel) = match process.queue.front_mut() {
                Some(Work::Kernel(left)) => (left, true),
                Some(Work::Copy(left)) => (left, false),
                _ => unreachable!("records are run"),
            };
            // A tenant that is alone is not interrupted.
            let time = (*left).min(if is_alone { u64::MAX } else { slice }).min(to - self.now);
            *left -= time;
            let is_done = *left == 0;
            process.left -= time;
            let container = process.container;
            match self.served.last_mut().filter(|last| last.0 == container && last.2 == self.now) {
                _ if !is_kernel => {}
                Some(last) => last.2 += time,
                None => self.served.push((container, self.now, self.now + time)),
            }
            self.now += time;
            self.slice = (turn, slice.saturating_sub(time));
            if is_done {
                self.processes[turn].queue.pop_front();
                self.processes[turn].kernels -= 1;
                self.run_records(turn);
            }
        }
        self.now = to;
    }

    /// How long a container's kernels ran between two times.
    pub(super) fn time(&self, container: usize, from: u64, to: u64) -> u64 {
        let first = self.served.partition_point(|span| span.2 <= from);
        let spans =
            self.served[first..].iter().take_while(|span| span.1 < to).filter(|span| span.0 == container);
        spans.map(|span| span.2.min(to).saturating_sub(span.1.max(from))).sum()
    }

    /// The most that it ran in any span of `length` between two times.
    pub(super) fn most(&self, container: usize, length: u64, from: u64, to: u64) -> u64 {
        // A span that has the most can be moved until it begins with a kernel.
        let spans: Vec<_> = self.served.iter().filter(|span| span.0 == container && span.1 >= from).collect();
        let (mut most, mut last, mut sum) = (0, 0, 0);
        for (first, span) in spans.iter().enumerate() {
            while last < spans.len() && spans[last].2 <= span.1 + length {
                sum += spans[last].2 - spans[last].1;
                last += 1;
            }
            let part = spans.get(last).map_or(0, |next| (span.1 + length).saturating_sub(next.1));
            if span.1 + length <= to {
                most = most.max(sum + part);
            }
            if last > first {
                sum -= span.2 - span.1;
            } else {
                last = first + 1;
            }
        }
        most
    }
}
