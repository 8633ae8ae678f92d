//! What happens to a lease after [`prepare`](crate::prepare()): it learns its init, and it ends.

use std::path::Path;

use fgpu_allocator::proc::{self, Membership};
use fgpu_allocator::{Host, Key, Lease, Process, Store};
use fgpu_spec::{Error, Nonce};

use crate::config::Config;
use crate::events::Events;
use crate::{driver_step, ending};

/// The node's leases; what becomes of them through this store is recorded.
///
/// # Errors
/// As [`Store::open`].
pub fn store(config: &Config) -> Result<Store, Error> {
    Ok(Store::open(&config.state_dir)?.observed_by(Box::new(Events::of(config))))
}

fn own_store() -> Result<Store, Error> {
    store(&Config::load()?)
}

/// Records the container's init and its cgroup in the lease. A lease that is gone, or an init that has ended
/// already, changes nothing.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn activate(nonce: &Nonce, pid: i32) -> Result<(), Error> {
    let Some(init) = Process::of(pid) else { return Ok(()) };
    own_store()?.activate(nonce, Some(init), cgroup_of(pid))?;
    Ok(())
}

/// [`activate`], and has the driver hold the container to its memory, for a grant of the `driver` tier: its
/// cgroup exists by now, and nothing of it runs yet.
///
/// # Errors
/// The state directory cannot be read or written; the driver refuses and the request `insists`.
pub fn limit(nonce: &Nonce, pid: i32, insists: bool) -> Result<(), Error> {
    activate(nonce, pid)?;
    let config = Config::load()?;
    driver_step::limit(&config, &store(&config)?, nonce, insists)
}

/// Gives one grant back. Does nothing if that was done already.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn release(nonce: &Nonce) -> Result<(), Error> {
    let config = Config::load()?;
    give_back(&config, &store(&config)?, nonce)
}

/// [`release`] in a store that is open.
///
/// # Errors
/// As [`release`].
pub fn give_back(config: &Config, store: &Store, nonce: &Nonce) -> Result<(), Error> {
    let _step = tracing::debug_span!("release", %nonce).entered();
    match store.release(nonce)? {
        Some(lease) => driver_step::ended(config, store, &lease),
        None => Ok(()),
    }
}

/// [`give_back`] of a lease whatever it is tied to.
///
/// # Errors
/// As [`release`].
pub fn give_back_anchored(config: &Config, store: &Store, nonce: &Nonce) -> Result<(), Error> {
    match store.release_held(nonce)? {
        Some(lease) => driver_step::ended(config, store, &lease),
        None => Ok(()),
    }
}

/// Whether a container of this name holds anything.
///
/// # Errors
/// The state directory cannot be read.
pub fn holds(namespace: &str, id: &str) -> Result<bool, Error> {
    Ok(own_store()?.has(&Key { namespace: namespace.into(), id: id.into() })?)
}

/// Gives back whatever a container of this name holds.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn release_container(namespace: &str, id: &str) -> Result<(), Error> {
    let config = Config::load()?;
    let store = store(&config)?;
    let released = store.release_key(&Key { namespace: namespace.into(), id: id.into() })?;
    ended(&config, &store, &released)
}

/// Gives back what a container held that the runtime has deleted. A lease that a process lives on stays: it
/// is another container's, of the same name below another state directory.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn release_deleted(key: &Key) -> Result<(), Error> {
    let config = Config::load()?;
    let store = store(&config)?;
    let mut released = store.release_deleted(key)?;
    if released.is_empty() {
        ending::wait(&store, key)?;
        released = store.release_deleted(key)?;
    }
    ended(&config, &store, &released)
}

/// Sees to the driver's part of leases that have come to their end, of all of them whatever becomes of one.
pub fn ended(config: &Config, store: &Store, leases: &[Lease]) -> Result<(), Error> {
    let results: Vec<_> = leases.iter().map(|lease| driver_step::ended(config, store, lease)).collect();
    results.into_iter().collect()
}

/// The cgroup that a container's init has been given, as `/proc/<pid>/cgroup` has it: of the devices
/// controller on a v1 hierarchy or of v2, whichever is deeper.
///
/// `None` if it has none of its own. A container may be left where its engine is (`podman run
/// --cgroups=disabled`), where other processes live long after its end: its lease would never be given back.
/// So a cgroup that this process is in, or is below of, is no container's.
pub fn cgroup_of(pid: i32) -> Option<String> {
    own_cgroup(&proc::cgroups(&pid.to_string()).ok()?, &proc::cgroups("self").ok()?).map(str::to_owned)
}

fn own_cgroup<'a>(theirs: &'a [Membership], ours: &[Membership]) -> Option<&'a str> {
    let pairs = cgroups_in(theirs).into_iter().zip(cgroups_in(ours));
    let own = pairs.filter_map(|(theirs, ours)| {
        theirs.filter(|path| !ours.is_some_and(|ours| Path::new(ours).starts_with(path)))
    });
    // systemd on v1 leaves a scope's processes in the slice of a controller that the scope does not need. Of
    // equals the last is taken.
    own.filter(|path| *path != "/").rev().max_by_key(|path| Path::new(path).components().count())
}

/// The paths in the devices controller's v1 hierarchy and in that of v2.
pub fn cgroups_in(lines: &[Membership]) -> [Option<&str>; 2] {
    let path = |controller: &str| lines.iter().find(|line| line.is_of(controller));
    [path("devices"), path("")].map(|line| line.map(|line| &*line.path))
}

/// Whether no process is left in the cgroup that [`cgroup_of`] named. A cgroup that is gone is empty; one of
/// which it cannot be told is not: a process in it may use the share.
pub fn cgroup_is_empty(cgroup: &str) -> bool {
    matches!(Host::default().cgroup_has_process(cgroup), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Membership> {
        proc::parse_cgroups(text.as_bytes())
    }

    #[test]
    fn the_devices_hierarchy_comes_before_the_unified_one() {
        let v1 = "12:pids:/a\n3:cpu,devices:/docker/1:2\n0::/unified\n";
        assert_eq!(cgroups_in(&read(v1)), [Some("/docker/1:2"), Some("/unified")]);
        assert_eq!(cgroups_in(&read("0::/system.slice/x\n")), [None, Some("/system.slice/x")]);
        assert_eq!(cgroups_in(&read("")), [None, None]);
    }

    #[test]
    fn a_cgroup_that_is_shared_is_no_containers() {
        let own = |theirs, ours| own_cgroup(&read(theirs), &read(ours)).map(str::to_owned);
        assert_eq!(own("0::/docker/1\n", "0::/init\n"), Some("/docker/1".to_owned()));
        assert_eq!(own("0::/session.scope/a\n", "0::/session.scope\n"), Some("/session.scope/a".to_owned()));
        assert_eq!(own("0::/init\n", "0::/init\n"), None, "podman --cgroups=disabled");
        assert_eq!(own("0::/user.slice\n", "0::/user.slice/session.scope\n"), None);
        assert_eq!(own("0::/user.slice-2\n", "0::/user.slice\n"), Some("/user.slice-2".to_owned()));
        assert_eq!(own("0::/\n", "0::/x\n"), None);
        assert_eq!(
            own("5:devices:/docker/1\n0::/docker/1\n", "5:devices:/\n0::/\n"),
            Some("/docker/1".to_owned())
        );
        assert_eq!(own("5:devices:/a/1\n0::/b/2\n", "5:devices:/\n0::/\n"), Some("/a/1".to_owned()));
        assert_eq!(own("5:devices:/docker/1\n0::/\n", "5:devices:/\n0::/\n"), Some("/docker/1".to_owned()));
        let scope = "5:devices:/system.slice\n0::/system.slice/lab-1.scope\n";
        assert_eq!(own(scope, "5:devices:/\n0::/init.scope\n"), Some("/system.slice/lab-1.scope".to_owned()));
    }

    #[test]
    fn a_cgroup_of_which_it_cannot_be_told_is_not_empty() {
        assert!(cgroup_is_empty("/there/is/no/such/cgroup"));
        // Longer than a path may be (PATH_MAX): it cannot be read, and that proves nothing.
        assert!(!cgroup_is_empty(&"/cgroup".repeat(1000)));
    }
}
