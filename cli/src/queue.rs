//! The queue in `fgpu status`: the waiters, what they wait for, and why.

use fgpu_allocator::names::called;
use fgpu_allocator::{Store, Waiter, Waiting};
use fgpu_spec::{Error, Inventory, Nonce};
use serde::Serialize;

use crate::node::Node;
use crate::quantity::duration;
use crate::screen::{Look, STRONG};
use crate::table::{Cell, Column, Table};

/// One that waits, in `fgpu status --json`.
#[derive(Debug, Serialize)]
pub(crate) struct WaitingStatus {
    /// For the table; JSON has the namespace and the id in full.
    #[serde(skip)]
    name: String,
    /// The same: a few words.
    #[serde(skip)]
    brief: String,
    /// 1 is the first.
    position: usize,
    namespace: String,
    container: String,
    /// Names it for `fgpu release`.
    ticket: Nonce,
    owner: Option<String>,
    request: String,
    pub(crate) waited_seconds: u64,
    /// The process that waits.
    pid: i32,
    /// How often a later request was given room on a GPU that this one could use.
    passed: u32,
    /// Why it waits; none when it is about to start, or when the GPUs are not known.
    reason: Option<Reason>,
}

#[derive(Debug, Serialize)]
struct Reason {
    code: &'static str,
    message: String,
}

/// All waiters, in the order of the queue. Without an inventory the reason is unknown.
///
/// # Errors
/// What [`fgpu_allocator::WaitQueue::waiting`] says.
pub(crate) fn waiting(
    node: &Node,
    store: &Store,
    inventory: Option<&Inventory>,
    now: u64,
) -> Result<Vec<WaitingStatus>, Error> {
    let waiting = match inventory {
        Some(inventory) => store.queue().waiting(inventory, &node.config.rules())?,
        None => store.queue().waiters()?.into_iter().zip(1..).map(unexplained).collect(),
    };
    Ok(waiting.into_iter().map(|waiting| of(waiting, now)).collect())
}

fn unexplained((waiter, position): (Waiter, usize)) -> Waiting {
    Waiting { position, waiter, reason: None, brief: "-".into() }
}

fn of(Waiting { position, waiter, reason, brief }: Waiting, now: u64) -> WaitingStatus {
    WaitingStatus {
        name: called(&waiter.key, None),
        brief,
        position,
        namespace: waiter.key.namespace,
        container: waiter.key.id,
        ticket: waiter.ticket,
        owner: waiter.request.owner,
        request: waiter.request.text,
        waited_seconds: now.saturating_sub(waiter.since) / 1_000_000_000,
        pid: waiter.process.pid,
        passed: waiter.passed,
        reason: reason.map(|error| Reason { code: error.code.as_str(), message: error.message }),
    }
}

/// The table.
pub(crate) fn text(queue: &[WaitingStatus], look: &Look) -> String {
    // Where it is narrow the reason has what the three columns that stay leave over.
    let reason = look.width.map_or(32, |width| width.saturating_sub(25).clamp(12, 32));
    let mut table = Table::of([
        Column::new("NEXT").right(),
        Column::new("WAITING").cut(10),
        Column::new("REQUEST").cut(12).drop(1),
        Column::new("OWNER").cut(6).drop(2),
        Column::new("SINCE").right(),
        Column::new("REASON").cut(reason),
    ]);
    for waiting in queue {
        table.row([
            Cell::from(waiting.position.to_string()),
            Cell::styled(&waiting.name, STRONG),
            Cell::from(&waiting.request),
            Cell::from(waiting.owner.as_deref().unwrap_or_default()),
            Cell::from(duration(waiting.waited_seconds)),
            Cell::from(&waiting.brief),
        ]);
    }
    table.fitted(look)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use fgpu_allocator::{Key, Process};
    use fgpu_spec::{Code, Request, Tier};

    use super::*;

    pub(crate) fn one(reason: Option<Error>) -> WaitingStatus {
        let annotations = BTreeMap::from([
            ("fgpu/fraction".to_owned(), "0.5".to_owned()),
            ("fgpu/owner".to_owned(), "team-a".to_owned()),
        ]);
        let request = Request::parse(&annotations, None, &fgpu_spec::Defaults::default()).unwrap().unwrap();
        let waiter = Waiter {
            ticket: Nonce([1; 16]),
            process: Process { pid: 4711, start: 1 },
            since: 2_000_000_000,
            passed: 3,
            key: Key { namespace: "moby".into(), id: "third".into() },
            tiers: vec![Tier::Quota],
            request,
            pid_namespace: None,
        };
        let brief = "no room: 0.25 is the largest that fits".to_owned();
        of(Waiting { position: 1, waiter, reason, brief }, 63_500_000_000)
    }

    #[test]
    fn the_table() {
        assert_eq!(
            text(&[one(None)], &Look::PLAIN),
            "\
NEXT  WAITING     REQUEST                              OWNER   SINCE  REASON
   1  moby/third  fgpu/fraction=0.5 fgpu/owner=team-a  team-a  1m01s  no room: 0.25 is the largest that fits
"
        );
    }

    #[test]
    fn the_json_has_the_reason_in_full() {
        let value = serde_json::to_value(one(Some(Error::new(Code::NoCapacity, "why")))).unwrap();
        assert_eq!((&value["position"], &value["waited_seconds"]), (&1.into(), &61.into()));
        assert_eq!((&value["pid"], &value["passed"]), (&4711.into(), &3.into()));
        assert_eq!(value["ticket"], "01".repeat(16));
        assert_eq!(value["reason"], serde_json::json!({"code": "no-capacity", "message": "why"}));
        assert_eq!(serde_json::to_value(one(None)).unwrap()["reason"], serde_json::Value::Null);
    }
}
