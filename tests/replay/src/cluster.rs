//! A cluster whose machines are chosen as the trace's simulator chooses them, and whose GPUs fgpu chooses.
//!
//! The choice of a machine is that of "BestFit" in the Kubernetes scheduler simulator of FGD (Weng et al.,
//! USENIX ATC '23): of those with room for the task's processors, main memory and GPUs the one with the least
//! left, where 128 processors weigh as much as 8 GPUs, in whole percent; equal ones by name.

use fgpu_spec::{Policy, Request};

use crate::node::{self, Node};
use crate::trace::{MILLI, Machine, Task};

struct Host {
    cpu: u64,
    memory: u64,
    /// Thousandths of GPUs.
    gpu: u64,
    gpus: u32,
    model: String,
    node: Node,
}

/// The machines and what is left of them.
pub struct Cluster {
    hosts: Vec<Host>,
    policy: Policy,
    total: u64,
    used: u64,
}

/// What is left in whole percent, the other way round: the more the better the fit.
///
/// 100 (1 − ½ cpu / 128 000 − ½ gpu / 8000), in whole numbers.
fn score(cpu_left: u64, gpu_left: u64) -> i64 {
    let left = i64::try_from(cpu_left + 16 * gpu_left).unwrap_or(i64::MAX);
    (256_000 - left).div_euclid(2560)
}

impl Cluster {
    /// Empty machines, by name; `policy` is how fgpu chooses among the GPUs of one.
    pub fn new(machines: &[Machine], policy: Policy) -> Self {
        let host = |machine: &Machine| Host {
            cpu: machine.cpu,
            memory: machine.memory,
            gpu: u64::from(machine.gpus) * MILLI,
            gpus: machine.gpus,
            model: machine.model.clone(),
            node: Node::new(machine.gpus, &machine.model),
        };
        let hosts: Vec<_> = machines.iter().map(host).collect();
        let total = hosts.iter().map(|host| host.gpu).sum();
        Self { hosts, policy, total, used: 0 }
    }

    /// Thousandths of a GPU that there are.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Thousandths of a GPU that are given.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Nanoseconds that each of fgpu's decisions took.
    pub fn decisions(&self) -> Vec<u32> {
        self.hosts.iter().flat_map(|host| host.node.decisions.iter().copied()).collect()
    }

    /// Gives a task its place for good, if there is one.
    pub fn arrive(&mut self, task: &Task) -> bool {
        let models: Vec<&str> = task.models.split('|').filter(|model| !model.is_empty()).collect();
        let ppm = u32::try_from(task.milli() * 1000).unwrap_or(u32::MAX);
        let request = (task.gpus > 0).then(|| node::request(task.gpus, ppm, &models, self.policy));
        let fits = |host: &Host| {
            let model = models.is_empty() || task.gpus == 0 || models.contains(&&*host.model);
            host.cpu >= task.cpu
                && host.memory >= task.memory
                && host.gpu >= task.total()
                && host.gpus >= task.gpus
                && model
        };
        let mut open: Vec<(i64, usize)> = self
            .hosts
            .iter()
            .enumerate()
            .filter(|(_, host)| fits(host))
            .map(|(at, host)| (-score(host.cpu - task.cpu, host.gpu - task.total()), at))
            .collect();
        open.sort_unstable();
        open.into_iter().any(|(_, at)| self.put(at, task, request.as_ref()))
    }

    /// Whether fgpu finds room on that machine.
    fn put(&mut self, at: usize, task: &Task, request: Option<&Request>) -> bool {
        let host = &mut self.hosts[at];
        if request.is_some_and(|request| host.node.take(request).is_none()) {
            return false;
        }
        host.cpu -= task.cpu;
        host.memory -= task.memory;
        host.gpu -= task.total();
        self.used += task.total();
        true
    }

    /// How much of what is free the tasks cannot use, from 0 to 1: for each task, as often as it occurs, all
    /// that is free where it does not fit or asks for no GPU, else what is free on GPUs with too little for
    /// it (the fragmentation of FGD, section 3).
    pub fn fragmentation(&self, tasks: &[Task]) -> f64 {
        let mut classes = std::collections::BTreeMap::new();
        for task in tasks {
            *classes.entry((task.cpu, task.gpus, task.milli(), &*task.models)).or_insert(0u64) += 1;
        }
        let (mut lost, mut free) = (0.0, 0.0);
        for host in &self.hosts {
            let each: Vec<u64> = host.node.free().map(|ppm| u64::from(ppm) / 1000).collect();
            let all: u64 = each.iter().sum();
            free += all as f64;
            for (&(cpu, gpus, milli, models), &times) in &classes {
                let room = each.iter().filter(|&&left| left >= milli).count() >= gpus as usize;
                let model = models.is_empty() || models.split('|').any(|model| model == host.model);
                let unusable = if gpus == 0 || host.cpu < cpu || !room || !model {
                    all
                } else {
                    each.iter().filter(|&&left| left < milli).sum()
                };
                lost += unusable as f64 * times as f64 / tasks.len() as f64;
            }
        }
        if free > 0.0 { lost / free } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, cpu: u64, gpus: u32, model: &str) -> Machine {
        Machine { name: name.into(), cpu, memory: 1 << 20, gpus, model: model.into() }
    }

    fn task(cpu: u64, gpus: u32, milli: u64, models: &str) -> Task {
        let text =
            format!("cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n{cpu},0,{gpus},{milli},{models}\n");
        csv::Reader::from_reader(text.as_bytes()).into_deserialize().next().unwrap().unwrap()
    }

    #[test]
    fn the_score_is_the_simulators() {
        for (cpu, gpu) in [(0, 0), (128_000, 8000), (64_000, 0), (0, 460), (96_000, 7540), (12_345, 6789)] {
            let float = (1.0 - cpu as f64 / 128_000.0 * 0.5 - gpu as f64 / 8000.0 * 0.5) * 100.0;
            assert_eq!(score(cpu, gpu), float as i64, "{cpu} {gpu}");
        }
    }

    #[test]
    fn the_fullest_machine_that_fits_is_taken_and_equal_ones_by_name() {
        let machines =
            [machine("a", 64_000, 8, "G"), machine("b", 64_000, 8, "G"), machine("c", 64_000, 2, "T4")];
        let mut cluster = Cluster::new(&machines, Policy::Pack);
        let used = |cluster: &Cluster| cluster.hosts.iter().map(|host| 64_000 - host.cpu).collect::<Vec<_>>();
        assert!(cluster.arrive(&task(1000, 1, 500, "")));
        assert_eq!(used(&cluster), [0, 0, 1000], "it has the least left");
        assert!(cluster.arrive(&task(1000, 8, 1000, "")));
        assert_eq!(used(&cluster), [1000, 0, 1000]);
        assert!(cluster.arrive(&task(1000, 1, 500, "G")));
        assert_eq!(used(&cluster), [1000, 1000, 1000]);
        assert!(!cluster.arrive(&task(1000, 8, 1000, "")), "b is no longer empty");
        assert!(!cluster.arrive(&task(65_000, 0, 0, "")));
        assert!(cluster.arrive(&task(60_000, 0, 0, "T4")), "a task without GPUs has no model");
        assert_eq!((cluster.used(), cluster.total()), (9000, 18_000));
    }

    #[test]
    fn memory_that_no_task_can_use_is_fragmentation() {
        let mut cluster = Cluster::new(&[machine("a", 8000, 2, "G")], Policy::Pack);
        let tasks = [task(1000, 1, 600, ""), task(1000, 1, 1000, "")];
        assert_eq!(cluster.fragmentation(&tasks), 0.0);
        assert!(cluster.arrive(&tasks[0]));
        // 400 and 1000 are free; the 400 are lost to both tasks.
        assert!((cluster.fragmentation(&tasks) - 400.0 / 1400.0).abs() < 1e-12);
        assert!(cluster.arrive(&task(7000, 0, 0, "")));
        assert_eq!(cluster.fragmentation(&tasks), 1.0, "no processor is left with it");
    }
}
