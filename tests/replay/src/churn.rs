//! Arrivals and departures on one node, until it is in balance: what is refused, and how much of what was
//! asked is served.
//!
//! Requests arrive at random (exponential times between them) and stay as long at random. The load is what
//! would be in use if everything were served, as a part of what there is. A request that finds no room is
//! lost; nobody waits.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use fastrand::Rng;

/// What gives and takes back: fractions of GPUs, MIG slices.
pub trait Server {
    /// What is asked for.
    type Ask;
    /// What was given.
    type Held;

    /// How much there is.
    fn capacity(&self) -> f64;

    /// How much of that is asked for.
    fn size(ask: &Self::Ask) -> f64;

    /// Gives it, if there is room.
    fn take(&mut self, ask: &Self::Ask) -> Option<Self::Held>;

    /// Takes it back.
    fn give_back(&mut self, held: Self::Held);
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Requests that were served, of all, from 0 to 1.
    pub accepted: f64,
    /// Of what all requests asked for (size times time), what was served, from 0 to 1.
    pub served: f64,
}

/// A stay that ends.
struct End<H> {
    at: f64,
    held: H,
}

impl<H> PartialEq for End<H> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<H> Eq for End<H> {}
impl<H> PartialOrd for End<H> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<H> Ord for End<H> {
    /// The earliest one is the greatest, which the heap gives first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at)
    }
}

/// Lets `arrivals` requests come, the first tenth of which only fills the node and does not count.
///
/// `mean` is the mean size of what `ask` draws.
pub fn churn<S: Server>(
    server: &mut S,
    mut ask: impl FnMut(&mut Rng) -> S::Ask,
    mean: f64,
    load: f64,
    arrivals: usize,
    rng: &mut Rng,
) -> Outcome {
    let rate = load * server.capacity() / mean;
    let mut ends: BinaryHeap<End<S::Held>> = BinaryHeap::new();
    let mut now = 0.0;
    let (mut came, mut accepted, mut asked, mut served) = (0u64, 0u64, 0.0, 0.0);
    for arrival in 0..arrivals {
        now += exponential(rng) / rate;
        while ends.peek().is_some_and(|end| end.at <= now) {
            if let Some(end) = ends.pop() {
                server.give_back(end.held);
            }
        }
        let (ask, stay) = (ask(rng), exponential(rng));
        let size = S::size(&ask) * stay;
        let held = server.take(&ask);
        if arrival >= arrivals / 10 {
            came += 1;
            asked += size;
            accepted += u64::from(held.is_some());
            served += if held.is_some() { size } else { 0.0 };
        }
        ends.extend(held.map(|held| End { at: now + stay, held }));
    }
    Outcome {
        accepted: accepted as f64 / came.max(1) as f64,
        served: served / f64::max(asked, f64::MIN_POSITIVE),
    }
}

/// Lets requests come that stay for ever, until they ask for `percent` of what there is. Returns how much of
/// it is given, from 0 to 1.
pub fn fill<S: Server>(
    server: &mut S,
    mut ask: impl FnMut(&mut Rng) -> S::Ask,
    percent: u32,
    rng: &mut Rng,
) -> f64 {
    let (mut asked, mut given) = (0.0, 0.0);
    while asked < server.capacity() * f64::from(percent) / 100.0 {
        let ask = ask(rng);
        asked += S::size(&ask);
        given += if server.take(&ask).is_some() { S::size(&ask) } else { 0.0 };
    }
    given / server.capacity()
}

/// A time of chance with the mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.f64()).ln()
}

#[cfg(test)]
mod tests;
