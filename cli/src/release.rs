//! `fgpu release` and `fgpu gc`: giving back what is not used any more.

use fgpu_allocator::{Key, Lease, Store, Waiter};
use fgpu_engine::config::Config;
use fgpu_spec::{Code, Error, Nonce};
use serde::Serialize;

use crate::find::{self, Candidate, full_name};
use crate::output::{Output, json};

/// Gives back what one container holds, named as in `fgpu status`, or ends its wait.
///
/// # Errors
/// `invalid-request` if no container or more than one is meant; `denied` if the container still runs and
/// `force` is not given; what the store says.
pub(crate) fn run(config: &Config, what: &str, force: bool) -> Result<Output, Error> {
    let store = fgpu_engine::store(config)?;
    loop {
        // In this order: a waiter that is granted something in between is in both, and never in none.
        let waiters = store.queue().waiters()?;
        let leases = store.leases()?;
        match find::one(candidates(&leases, &waiters), what)? {
            Entry::Holds(lease) => return release(config, &store, lease, force),
            Entry::Waits(waiter) if store.queue().cancel(&waiter.ticket)? => {
                return Ok(format!("{} waits no longer\n", logged(&waiter.key)).into());
            }
            // It has been granted something meanwhile, or gave up.
            Entry::Waits(_) => {}
        }
    }
}

/// The containers that can be released.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Entry<'a> {
    Holds(&'a Lease),
    Waits(&'a Waiter),
}

/// The containers that hold a share, and those that wait and hold none.
fn candidates<'a>(leases: &'a [Lease], waiters: &'a [Waiter]) -> Vec<Candidate<'a, Entry<'a>>> {
    let holds = find::candidates(leases).into_iter().map(|one| {
        let Candidate { key, nonce, name, value } = one;
        Candidate { key, nonce, name, value: Entry::Holds(value) }
    });
    let waits = waiters.iter().filter(|waiter| !leases.iter().any(|lease| lease.key == waiter.key));
    let waits = waits.map(|waiter| Candidate {
        key: &waiter.key,
        nonce: waiter.ticket,
        name: None,
        value: Entry::Waits(waiter),
    });
    holds.chain(waits).collect()
}

fn release(config: &Config, store: &Store, lease: &Lease, force: bool) -> Result<Output, Error> {
    if let (Some(anchor), false) = (&lease.anchor, force) {
        return Err(Error::new(
            Code::Denied,
            format!(
                "{} is given back by fgpu-dra: delete the pods that use it, or use --force",
                anchor.words()
            ),
        ));
    }
    let in_use = !force && store.is_in_use(lease)?;
    if in_use && store.is_elsewhere(lease) {
        return Err(Error::new(
            Code::Denied,
            format!(
                "{} was given its share in another PID namespace, and cannot be seen from here: stop the container, or \
                 release it from there (--pid=host, hostPID: true), or use --force",
                full_name(&lease.key)
            ),
        ));
    }
    if in_use {
        // One without a recorded init is known by its runtime's files, or by its cgroup.
        let by = holder(lease).map_or_else(String::new, |process| format!(" by process {process}"));
        return Err(Error::new(
            Code::Denied,
            format!(
                "{} is in use{by}: what it has allocated would be granted twice; stop the container, or use --force",
                full_name(&lease.key)
            ),
        ));
    }
    fgpu_engine::give_back_anchored(config, store, &lease.grant.nonce)?;
    Ok(released(std::slice::from_ref(lease)).into())
}

/// The answer of `fgpu gc --json`.
#[derive(Debug, Serialize)]
struct Freed<'a> {
    released: Vec<FreedLease<'a>>,
}

#[derive(Debug, Serialize)]
struct FreedLease<'a> {
    namespace: &'a str,
    container: &'a str,
    grant: Nonce,
    owner: Option<&'a str>,
    request: &'a str,
}

/// How `fgpu gc` tells what it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// A line for each lease, or one that says that there was none.
    Text,
    /// Only what was released: a timer's log shall not grow with nothing.
    Quietly,
    /// JSON.
    Json,
}

/// Gives back the shares of containers that are gone.
///
/// # Errors
/// What the store says.
pub(crate) fn gc(config: &Config, tell: Tell) -> Result<Output, Error> {
    let store = fgpu_engine::store(config)?;
    let mut freed = store.reconcile()?;
    crate::run::clear_leftovers(&store, &config.state_dir)?;
    let mut finished = fgpu_engine::driver_step::finish(config, &store)?;
    freed.append(&mut finished.adopted);
    let mut warnings: Vec<_> = finished.failed.into_iter().map(|error| error.message).collect();
    let mut opened = String::new();
    let looked = fgpu_engine::reopen(config, &store);
    let told = looked.unwrap_or_else(|error| {
        warnings.push(format!("no device was looked at: {}", error.message));
        Vec::new()
    });
    for (lease, result) in told {
        match result {
            Ok(()) => opened += &format!("opened the GPU of {} again\n", logged(&lease.key)),
            Err(error) => warnings.push(format!("{}: {}", logged(&lease.key), error.message)),
        }
    }
    let text = match tell {
        Tell::Json => json(&Freed {
            released: freed
                .iter()
                .map(|lease| FreedLease {
                    namespace: &lease.key.namespace,
                    container: &lease.key.id,
                    grant: lease.grant.nonce,
                    owner: lease.owner.as_deref(),
                    request: &lease.request,
                })
                .collect(),
        })?,
        Tell::Text if freed.is_empty() && opened.is_empty() => "nothing to release\n".into(),
        Tell::Text | Tell::Quietly => opened + &released(&freed),
    };
    // A timer's log shall not grow with what stays as it is.
    if tell != Tell::Quietly {
        let stays = |(lease, why): &(Lease, std::io::Error)| format!("{} stays: {why}", logged(&lease.key));
        warnings.extend(store.undetermined()?.iter().map(stays));
    }
    Ok(Output { text, warnings, ..Output::default() })
}

/// Makes an allocator file that failed its check anew from what of it can be proven.
///
/// # Errors
/// `state-corrupt` if a grant that may still be in use is lost and `force` is not given; what the store says.
pub(crate) fn rebuild(config: &Config, force: bool) -> Result<Output, Error> {
    let store = fgpu_engine::store(config)?;
    let rebuilt = store.rebuild(force)?;
    // A line may be from before a resize; the container is held to what it says now.
    let mut warnings = Vec::new();
    for lease in store.leases()? {
        if let Err(error) = fgpu_engine::enforce(config, &store, &lease) {
            warnings.push(format!("{} keeps its former limits: {}", full_name(&lease.key), error.message));
        }
    }
    let mut text = format!("{} leases hold, {} lines were damaged\n", rebuilt.kept.len(), rebuilt.damaged);
    text += &released(&rebuilt.freed);
    for nonce in &rebuilt.lost {
        text += &format!("gave up grant {nonce}, which a container may still use\n");
    }
    if let Some(aside) = &rebuilt.aside {
        text += &format!("the damaged file is kept as {}\n", aside.display());
    }
    Ok(Output { text, warnings, ..Output::default() })
}

fn released(leases: &[Lease]) -> String {
    let line = |lease: &Lease| format!("released {} (grant {})\n", logged(&lease.key), lease.grant.nonce);
    leases.iter().map(line).collect()
}

/// The id in full, to be found in logs; not a bundle's path, which has it in it.
fn logged(key: &Key) -> String {
    if key.namespace.starts_with('/') { key.id.clone() } else { full_name(key) }
}

/// The process that is written down as the one that keeps the lease alive, if it runs.
fn holder(lease: &Lease) -> Option<i32> {
    let process = lease.init.unwrap_or(lease.maker);
    process.is_alive().then_some(process.pid)
}

#[cfg(test)]
mod tests {
    use fgpu_allocator::Process;
    use fgpu_spec::{Defaults, Request, Tier};

    use super::*;
    use crate::status::tests::lease;

    #[test]
    fn waiters_are_found_beside_holders() {
        let asked = [("fgpu/fraction".to_owned(), "1".to_owned())].into();
        let request = Request::parse(&asked, None, &Defaults::default()).unwrap().unwrap();
        let waiter = |id: &str, ticket| Waiter {
            ticket: Nonce([ticket; 16]),
            process: Process { pid: 1, start: 1 },
            since: 0,
            passed: 0,
            key: Key { namespace: "moby".into(), id: id.into() },
            tiers: vec![Tier::Quota],
            request: request.clone(),
            pid_namespace: None,
        };
        let leases = [lease("abc1", &[], false), lease("twice", &[], false)];
        let waiters = [waiter("abc2", 3), waiter("twice", 4)];
        let found = |what: &str| find::one(candidates(&leases, &waiters), what);
        assert_eq!(found("moby/abc2").unwrap(), Entry::Waits(&waiters[0]));
        assert_eq!(found(&"03".repeat(16)).unwrap(), Entry::Waits(&waiters[0]));
        assert_eq!(found("twice").unwrap(), Entry::Holds(&leases[1]), "granted between two looks");
        assert!(found("abc").unwrap_err().message.contains("moby/abc1 or moby/abc2"));
    }

    #[test]
    fn the_holder_is_the_init_once_there_is_one() {
        let me = Process::current().unwrap();
        let mut held = lease("a", &[], false);
        (held.maker, held.init) = (Process { pid: i32::MAX, start: 0 }, None);
        assert_eq!(holder(&held), None);
        held.maker = me;
        assert_eq!(holder(&held), Some(me.pid));
        held.init = Some(Process { start: me.start + 1, ..me });
        assert_eq!(holder(&held), None, "a reused pid is somebody else");
    }
}
