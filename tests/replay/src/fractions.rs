//! Fractions of the GPUs of one node, for [`churn`](crate::churn).

use fastrand::Rng;
use fgpu_spec::{Policy, Request};

use crate::churn::Server;
use crate::node::{self, Node, Share, WHOLE};
use crate::trace::Task;

/// A node whose GPUs are shared in fractions.
pub struct Fractions {
    /// The GPUs.
    pub node: Node,
    gpus: u32,
}

impl Fractions {
    /// So many empty GPUs.
    pub fn new(gpus: u32) -> Self {
        Self { node: Node::new(gpus, "G"), gpus }
    }
}

impl Server for Fractions {
    type Ask = Request;
    type Held = Share;

    fn capacity(&self) -> f64 {
        f64::from(self.gpus)
    }

    fn size(ask: &Request) -> f64 {
        f64::from(ask.cores_ppm) * f64::from(ask.count) / f64::from(WHOLE)
    }

    fn take(&mut self, ask: &Request) -> Option<Share> {
        self.node.take(ask)
    }

    fn give_back(&mut self, held: Share) {
        self.node.give_back(&held);
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Mix {
    /// GPUs, and parts per million of each.
    asks: Vec<(u32, u32)>,
}

impl Mix {
    /// A tenth to a whole GPU, each tenth as often as another.
    pub fn tenths() -> Self {
        Self { asks: (1..=10).map(|tenth| (1, tenth * WHOLE / 10)).collect() }
    }

    /// What the tasks of a trace ask for, as often as they do.
    pub fn of(tasks: &[Task]) -> Self {
        let ppm = |task: &Task| u32::try_from(task.milli() * 1000).unwrap_or(WHOLE);
        Self { asks: tasks.iter().filter(|task| task.gpus > 0).map(|task| (task.gpus, ppm(task))).collect() }
    }

    /// GPUs that a request asks for in the mean.
    pub fn mean(&self) -> f64 {
        let all: u64 = self.asks.iter().map(|&(count, ppm)| u64::from(count) * u64::from(ppm)).sum();
        all as f64 / f64::from(WHOLE) / self.asks.len() as f64
    }

    /// A request of chance.
    pub fn draw(&self, policy: Policy, rng: &mut Rng) -> Request {
        let (count, ppm) = self.asks[rng.usize(..self.asks.len())];
        node::request(count, ppm, &[], policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::churn::{churn, fill};

    /// 100 nodes filled, and one in balance; the mean of what is given, and what is accepted.
    fn measured(policy: Policy) -> (f64, f64) {
        let (mix, mut rng) = (Mix::tenths(), Rng::with_seed(42));
        let full: f64 =
            (0..100).map(|_| fill(&mut Fractions::new(8), |rng| mix.draw(policy, rng), 130, &mut rng)).sum();
        let mut server = Fractions::new(8);
        let outcome = churn(&mut server, |rng| mix.draw(policy, rng), mix.mean(), 0.85, 20_000, &mut rng);
        (full / 100.0, outcome.accepted)
    }

    #[test]
    fn packing_holds_more_than_spreading() {
        let (pack, spread) = (measured(Policy::Pack), measured(Policy::Spread));
        assert!(pack.0 > spread.0 + 0.08, "filled: {pack:?} {spread:?}");
        assert!(pack.1 > spread.1 + 0.03, "in balance: {pack:?} {spread:?}");
    }

    #[test]
    fn a_node_that_emptied_is_empty() {
        let mut server = Fractions::new(4);
        let (mix, mut rng) = (Mix::tenths(), Rng::with_seed(1));
        let mut held: Vec<Share> = Vec::new();
        for _ in 0..5_000 {
            held.extend(server.take(&mix.draw(Policy::Pack, &mut rng)));
            let sum: u64 = held.iter().map(Share::size).sum();
            let free: u64 = server.node.free().map(u64::from).sum();
            assert_eq!(sum + free, 4 * u64::from(WHOLE), "nothing is given twice and nothing is lost");
            if rng.bool() && !held.is_empty() {
                server.give_back(held.swap_remove(rng.usize(..held.len())));
            }
        }
        held.into_iter().for_each(|share| server.give_back(share));
        assert!(server.node.free().all(|ppm| ppm == WHOLE));
    }
}
