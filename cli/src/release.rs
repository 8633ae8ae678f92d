//! `fgpu release` and `fgpu gc`: giving back what nobody uses any more.

use fgpu_allocator::Lease;
use fgpu_hook::config::Config;
use fgpu_spec::{Code, Error, Nonce};
use serde::Serialize;

use crate::output::{Output, json};

/// Gives back what one container holds, named as in `fgpu status`.
///
/// # Errors
/// `invalid-request` if no lease or more than one is meant; `denied` if the container still runs and `force` is
/// not given; what the store says.
pub(crate) fn run(config: &Config, what: &str, force: bool) -> Result<Output, Error> {
    let store = fgpu_hook::store(config)?;
    let leases = store.leases()?;
    let lease = find(&leases, what)?;
    if !force && let Some(process) = holder(lease) {
        return Err(Error::new(
            Code::Denied,
            format!(
                "{} is in use by process {process}: what it has allocated would be granted twice; stop the \
                 container, or use --force",
                full_name(lease)
            ),
        ));
    }
    fgpu_hook::give_back(config, &store, &lease.grant.nonce)?;
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
    let store = fgpu_hook::store(config)?;
    let freed = store.reconcile()?;
    fgpu_hook::clear_leftovers(&store, &config.state_dir)?;
    let undone = fgpu_hook::driver_step::finish(config, &store)?;
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
        Tell::Text if freed.is_empty() => "nothing to release\n".into(),
        Tell::Text | Tell::Quietly => released(&freed),
    };
    let warnings = undone.into_iter().map(|error| error.message).collect();
    Ok(Output { text, warnings, ..Output::default() })
}

/// Makes an allocator file that failed its check anew from what of it can be proven.
///
/// # Errors
/// `state-corrupt` if a grant that may still be in use is lost and `force` is not given; what the store says.
pub(crate) fn rebuild(config: &Config, force: bool) -> Result<Output, Error> {
    let store = fgpu_hook::store(config)?;
    let rebuilt = store.rebuild(force)?;
    // A line may be from before a resize; the container is held to what it says now.
    let mut warnings = Vec::new();
    for lease in store.leases()? {
        if let Err(error) = fgpu_hook::enforce(&store, &lease) {
            warnings.push(format!("{} keeps its former limits: {}", full_name(&lease), error.message));
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
    // The id in full, to be found in logs; not a bundle's path, which has it in it.
    let name = |lease: &Lease| match lease.key.namespace.starts_with('/') {
        true => lease.key.id.clone(),
        false => full_name(lease),
    };
    let line = |lease: &Lease| format!("released {} (grant {})\n", name(lease), lease.grant.nonce);
    leases.iter().map(line).collect()
}

/// The process that keeps the lease alive, if it runs.
fn holder(lease: &Lease) -> Option<i32> {
    let process = lease.init.unwrap_or(lease.maker);
    process.is_alive().then_some(process.pid)
}

pub(crate) fn full_name(lease: &Lease) -> String {
    format!("{}/{}", lease.key.namespace, lease.key.id)
}

/// The lease that `what` names: a grant, `NAMESPACE/ID`, an id, or the beginning of one.
pub(crate) fn find<'a>(leases: &'a [Lease], what: &str) -> Result<&'a Lease, Error> {
    if let Ok(nonce) = what.parse::<Nonce>()
        && let Some(lease) = leases.iter().find(|lease| lease.grant.nonce == nonce)
    {
        return Ok(lease);
    }
    let exact = |lease: &&Lease| lease.key.id == what || full_name(lease) == what;
    let begins = |lease: &&Lease| lease.key.id.starts_with(what) || full_name(lease).starts_with(what);
    let mut found: Vec<&Lease> = leases.iter().filter(exact).collect();
    if found.is_empty() && !what.is_empty() {
        found = leases.iter().filter(begins).collect();
    }
    let shown = fgpu_spec::shown(what);
    match found.as_slice() {
        [lease] => Ok(lease),
        [] => Err(Error::new(
            Code::InvalidRequest,
            format!("no container {shown} holds a share; `fgpu status` lists those that do"),
        )),
        several => {
            let names: Vec<String> = several.iter().map(|lease| full_name(lease)).collect();
            Err(Error::new(
                Code::InvalidRequest,
                format!("{shown} may be {}; name one of them in full", names.join(" or ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use fgpu_allocator::{Key, Process, State};
    use fgpu_spec::{Compute, Grant, Tier};

    use super::*;

    fn lease(namespace: &str, id: &str, nonce: u8) -> Lease {
        Lease {
            key: Key { namespace: namespace.into(), id: id.into() },
            grant: Grant {
                nonce: Nonce([nonce; 16]),
                tier: Tier::Quota,
                compute: Compute::Cap,
                gpus: Vec::new(),
                notes: Vec::new(),
            },
            state: State::Reserving,
            owner: None,
            exclusive: false,
            bundle: "/bundle".into(),
            maker: Process { pid: i32::MAX, start: 0 },
            pid_file: None,
            init: None,
            cgroup: None,
            created: 0,
            wall: 0,
            request: String::new(),
            trouble: None,
            kept: None,
        }
    }

    fn found(what: &str) -> Result<u8, String> {
        let leases = [
            lease("moby", "abc1", 1),
            lease("moby", "abc12", 2),
            lease("k8s.io", "def", 3),
            lease("a", "def", 4),
        ];
        find(&leases, what).map(|lease| lease.grant.nonce.0[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_container_is_found_by_every_name_it_has() {
        assert_eq!(found(&"02".repeat(16)), Ok(2));
        assert_eq!(found("abc12"), Ok(2));
        assert_eq!(found("moby/abc12"), Ok(2));
        assert_eq!(found("k8s.io/def"), Ok(3));
        assert_eq!(found("k8s.io/d"), Ok(3));
        assert_eq!(found("abc1"), Ok(1), "a whole id comes before the beginning of another");
    }

    #[test]
    fn what_is_nobody_or_several_is_refused() {
        assert!(found("def").unwrap_err().contains("k8s.io/def or a/def"));
        assert!(found("abc").unwrap_err().contains("moby/abc1 or moby/abc12"));
        for nobody in ["", "x", &"09".repeat(16), "/"] {
            assert!(found(nobody).unwrap_err().contains("fgpu: invalid-request: no container"), "{nobody}");
        }
    }

    #[test]
    fn the_holder_is_the_init_once_there_is_one() {
        let me = Process::current().unwrap();
        let mut held = lease("moby", "a", 1);
        assert_eq!(holder(&held), None);
        held.maker = me;
        assert_eq!(holder(&held), Some(me.pid));
        held.init = Some(Process { start: me.start + 1, ..me });
        assert_eq!(holder(&held), None, "a reused pid is somebody else");
    }
}
