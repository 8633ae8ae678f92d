//! In which order tasks arrive, and how many.

use fastrand::Rng;

use crate::trace::Task;

/// The tasks in an order of chance, and more of them drawn by chance until they ask for `percent` of
/// `capacity` (thousandths of a GPU), or fewer: as FGD's simulator tunes a workload.
pub fn arrivals<'a>(tasks: &'a [Task], capacity: u64, percent: u64, rng: &mut Rng) -> Vec<&'a Task> {
    let mut order: Vec<&Task> = tasks.iter().collect();
    rng.shuffle(&mut order);
    let target = capacity * percent / 100;
    let mut asked: u64 = order.iter().map(|task| task.total()).sum();
    while asked > target {
        asked -= order.swap_remove(rng.usize(..order.len())).total();
    }
    // A trace of tasks without GPUs never gets there.
    while tasks.iter().any(|task| task.gpus > 0) {
        let task = &tasks[rng.usize(..tasks.len())];
        if asked + task.total() > target {
            break;
        }
        asked += task.total();
        order.push(task);
    }
    order
}
