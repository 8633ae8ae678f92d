use super::*;

/// So many alike places.
struct Places {
    free: u32,
    all: u32,
}

impl Server for Places {
    type Ask = ();
    type Held = ();
    fn capacity(&self) -> f64 {
        f64::from(self.all)
    }
    fn size(_: &()) -> f64 {
        1.0
    }
    fn take(&mut self, _: &()) -> Option<()> {
        self.free = self.free.checked_sub(1)?;
        Some(())
    }
    fn give_back(&mut self, _: ()) {
        self.free += 1;
        assert!(self.free <= self.all);
    }
}

/// Erlang's formula for the requests that so many places lose at a load of so many.
fn erlang(places: u32, load: f64) -> f64 {
    (1..=places).fold(1.0, |loss, n| load * loss / (f64::from(n) + load * loss))
}

#[test]
fn the_loss_is_erlangs() {
    for (all, load) in [(1, 0.5), (8, 0.85), (20, 1.2)] {
        let mut places = Places { free: all, all };
        let outcome = churn(&mut places, |_| (), 1.0, load, 400_000, &mut Rng::with_seed(7));
        let expected = 1.0 - erlang(all, load * f64::from(all));
        assert!((outcome.accepted - expected).abs() < 0.005, "{all} {load}: {outcome:?} {expected}");
        assert!((outcome.served - expected).abs() < 0.01, "{all} {load}: {outcome:?} {expected}");
    }
}

#[test]
fn filling_stops_at_what_there_is() {
    let mut places = Places { free: 8, all: 8 };
    assert_eq!(fill(&mut places, |_| (), 50, &mut Rng::with_seed(1)), 0.5);
    assert_eq!(fill(&mut places, |_| (), 130, &mut Rng::with_seed(1)), 0.5, "the other half");
    assert_eq!(places.free, 0);
}
