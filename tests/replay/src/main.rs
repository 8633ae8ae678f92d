//! `fgpu-replay`: see `--help` and README.md.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use fastrand::Rng;
use fgpu_replay::arrivals::arrivals;
use fgpu_replay::churn::{churn, fill};
use fgpu_replay::cluster::Cluster;
use fgpu_replay::fractions::{Fractions, Mix};
use fgpu_replay::slices::{self, Slices};
use fgpu_replay::trace;
use fgpu_spec::Policy;

/// Replays through fgpu's own placement.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A trace of a cluster: tasks arrive and stay until so much is asked for. Machines are chosen as the
    /// trace's simulator chooses them (best fit), the GPUs of each by fgpu
    Trace {
        /// openb_node_list_gpu_node.csv
        #[arg(long, value_name = "FILE")]
        nodes: PathBuf,

        /// openb_pod_list_default.csv
        #[arg(long, value_name = "FILE")]
        pods: PathBuf,

        /// How many orders of arrival
        #[arg(long, default_value_t = 10)]
        seeds: u64,

        /// What arrives, in percent of the GPUs that there are
        #[arg(long, default_value_t = 130)]
        percent: u64,

        /// How fgpu chooses among the GPUs of a machine
        #[arg(long, default_value = "pack")]
        policy: Word,

        /// Fail if less is allocated in the mean, in percent of the GPUs
        #[arg(long, value_name = "PERCENT")]
        at_least: Option<f64>,
    },

    /// MIG slices of one node of H100s, every profile as often: in balance between arrivals and departures
    Mig {
        /// GPUs
        #[arg(long, default_value_t = 8)]
        gpus: u32,

        /// What would be in use if everything were served, as a part of the compute slices
        #[arg(long, default_value_t = 0.85)]
        load: f64,

        /// Requests
        #[arg(long, default_value_t = 200_000)]
        arrivals: usize,

        /// Fail if `pack` accepts less, in percent
        #[arg(long, value_name = "PERCENT")]
        at_least: Option<f64>,
    },

    /// One node of equal GPUs: filled once, and in balance between arrivals and departures
    Node {
        /// GPUs
        #[arg(long, default_value_t = 8)]
        gpus: u32,

        /// What would be in use if everything were served, as a part of what there is
        #[arg(long, default_value_t = 0.85)]
        load: f64,

        /// Requests
        #[arg(long, default_value_t = 200_000)]
        arrivals: usize,

        /// What is asked for is what this trace's tasks ask for; else a tenth to a whole GPU, each as often
        #[arg(long, value_name = "FILE")]
        pods: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Word {
    Pack,
    Spread,
}

impl From<Word> for Policy {
    fn from(word: Word) -> Self {
        match word {
            Word::Pack => Self::Pack,
            Word::Spread => Self::Spread,
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Trace { nodes, pods, seeds, percent, policy, at_least } => {
            let machines = trace::machines(&nodes).context("cannot read the nodes")?;
            let tasks = trace::tasks(&pods).context("cannot read the pods")?;
            let mean = replay(&machines, &tasks, seeds.max(1), percent, policy.into());
            if at_least.is_some_and(|least| mean < least) {
                eprintln!("fgpu-replay: {mean:.2}% is less than it must be");
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Mig { gpus, load, arrivals, at_least } => {
            let accepted = mig(gpus, load, arrivals);
            if at_least.is_some_and(|least| accepted < least) {
                eprintln!("fgpu-replay: {accepted:.2}% is less than it must be");
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Node { gpus, load, arrivals, pods } => {
            let mix = match pods {
                Some(path) => Mix::of(&trace::tasks(&path).context("cannot read the pods")?),
                None => Mix::tenths(),
            };
            node(gpus, load, arrivals, &mix);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a row per order of arrival and their means. Returns what is allocated in the mean, in percent.
fn replay(
    machines: &[trace::Machine],
    tasks: &[trace::Task],
    seeds: u64,
    percent: u64,
    policy: Policy,
) -> f64 {
    let gpus: u32 = machines.iter().map(|machine| machine.gpus).sum();
    println!("{} machines, {gpus} GPUs, {} tasks; {percent}% arrive\n", machines.len(), tasks.len());
    // Also where the curve bends: what is allocated when so much has arrived.
    let points: Vec<u64> = [50, 80, 100, 110, 120, percent].into_iter().filter(|&at| at <= percent).collect();
    let head: String = points.iter().map(|at| format!(" at {at}% |")).collect();
    println!("| seed |{head} lost of what is free | tasks refused |");
    println!("|{}", "---|".repeat(points.len() + 3));
    let mut sums = vec![0.0; points.len() + 2];
    let mut times = Vec::new();
    for seed in 42..42 + seeds {
        let mut cluster = Cluster::new(machines, policy);
        let order = arrivals(tasks, cluster.total(), percent, &mut Rng::with_seed(seed));
        let (mut asked, mut refused) = (0, 0u32);
        let mut row = Vec::new();
        for task in &order {
            asked += task.total();
            refused += u32::from(!cluster.arrive(task));
            while row.len() + 1 < points.len() && asked * 100 >= points[row.len()] * cluster.total() {
                row.push(100.0 * cluster.used() as f64 / cluster.total() as f64);
            }
        }
        row.resize(points.len(), 100.0 * cluster.used() as f64 / cluster.total() as f64);
        row.push(100.0 * cluster.fragmentation(tasks));
        row.push(100.0 * f64::from(refused) / order.len() as f64);
        sums.iter_mut().zip(&row).for_each(|(sum, value)| *sum += value);
        times.extend(cluster.decisions());
        print_row(&seed.to_string(), &row);
    }
    let means: Vec<f64> = sums.iter().map(|sum| sum / seeds as f64).collect();
    print_row("mean", &means);
    print_times(times);
    means[points.len() - 1]
}

fn print_row(name: &str, values: &[f64]) {
    let values: String = values.iter().map(|value| format!(" {value:.2}% |")).collect();
    println!("| {name} |{values}");
}

fn print_times(mut times: Vec<u32>) {
    times.sort_unstable();
    let Some(last) = times.len().checked_sub(1) else { return };
    let at = |part: f64| f64::from(times[(last as f64 * part) as usize]) / 1000.0;
    println!(
        "\n{} decisions: half within {:.1} us, 99% within {:.1} us, 99.9% within {:.1} us",
        times.len(),
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn node(gpus: u32, load: f64, arrivals: usize, mix: &Mix) {
    println!("{gpus} GPUs, {:.3} GPUs asked in the mean\n", mix.mean());
    println!("| policy | filled, 130% asked | accepted at load {load} | served of what was asked |");
    println!("|---|---|---|---|");
    let mut times = Vec::new();
    for (name, policy) in [("pack", Policy::Pack), ("spread", Policy::Spread)] {
        let mut rng = Rng::with_seed(42);
        const FILLS: u32 = 1000;
        let full: f64 = (0..FILLS)
            .map(|_| fill(&mut Fractions::new(gpus), |rng| mix.draw(policy, rng), 130, &mut rng))
            .sum();
        let mut server = Fractions::new(gpus);
        let outcome = churn(&mut server, |rng| mix.draw(policy, rng), mix.mean(), load, arrivals, &mut rng);
        let percent = [full / f64::from(FILLS), outcome.accepted, outcome.served].map(|part| part * 100.0);
        print_row(name, &percent);
        times.extend(server.node.decisions);
    }
    print_times(times);
}

/// Prints a row per policy. Returns what `pack` accepts, in percent.
fn mig(gpus: u32, load: f64, arrivals: usize) -> f64 {
    println!("{gpus} GPUs, {:.3} GPUs asked in the mean\n", slices::mean());
    println!("| policy | accepted at load {load} | compute time served |");
    println!("|---|---|---|");
    let [packed, _] = [("pack", Policy::Pack), ("spread", Policy::Spread)].map(|(name, policy)| {
        let mut server = Slices::new(gpus);
        let mut rng = Rng::with_seed(42);
        let outcome =
            churn(&mut server, |rng| slices::draw(policy, rng), slices::mean(), load, arrivals, &mut rng);
        print_row(name, &[outcome.accepted * 100.0, outcome.served * 100.0]);
        outcome.accepted * 100.0
    });
    packed
}
