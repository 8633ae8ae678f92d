//! Devices that were closed behind a container's back.
//!
//! Engines hand the device rules of their own spec to `update` (`podman update`, a pod's resize in place), in
//! which what fgpu added is not. runc leaves devices as they are; crun (1.21, 1.28) puts these rules in the
//! place of its own, and the container can open its GPU no more. No hook is called then: `fgpu-runtime` and
//! the relay look after each `update` that they see, and `fgpu gc` looks at all containers.

use fgpu_allocator::{Key, Lease, Process, Store};
use fgpu_spec::Error;

use crate::config::Config;
use crate::{cgroup_of, devices, plan, programs, store};

/// A container of which a device was closed, and whether it is open now.
pub type Reopened = (Lease, Result<(), Error>);

/// Lets each container that runs open the devices of its grant again. What comes back are those of which one
/// was closed.
///
/// # Errors
/// The leases or the inventory cannot be read.
pub fn reopen(config: &Config, store: &Store) -> Result<Vec<Reopened>, Error> {
    reopen_those(config, store, |_| true)
}

/// [`reopen`] for one container, whose resources have just been updated.
///
/// # Errors
/// As [`reopen`]; or a device stays closed.
pub fn reopen_container(namespace: &str, id: &str) -> Result<(), Error> {
    let config = Config::load()?;
    let key = Key { namespace: namespace.into(), id: id.into() };
    let looked = reopen_those(&config, &store(&config)?, |lease| lease.key == key)?;
    looked.into_iter().try_for_each(|(_, opened)| opened)
}

fn reopen_those(
    config: &Config,
    store: &Store,
    which: impl Fn(&Lease) -> bool,
) -> Result<Vec<Reopened>, Error> {
    let mut leases = store.leases()?;
    leases.retain(|lease| which(lease) && lease.key.namespace != crate::RUN_NAMESPACE);
    let containers: Vec<(Lease, Process)> = leases
        .into_iter()
        .flat_map(|lease| inits(&lease).into_iter().map(move |init| (lease.clone(), init)))
        .collect();
    if containers.is_empty() {
        return Ok(Vec::new());
    }
    let inventory = fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)?;
    let mut told = Vec::new();
    for (lease, init) in containers {
        let nodes = plan::nodes(config, &inventory, &lease.grant);
        match nodes.and_then(|nodes| devices::open(init.pid, &nodes)) {
            Ok(opened) if !init.is_alive() => opened.undo()?,
            Ok(opened) if opened.is_empty() => {}
            Ok(_) => told.push((lease, Ok(()))),
            Err(error) => told.push((lease, Err(error))),
        }
    }
    Ok(told)
}

/// The inits of a lease's containers that run in the cgroup that was theirs when they got their share.
fn inits(lease: &Lease) -> Vec<Process> {
    let own = lease.init.zip(lease.cgroup.as_ref());
    let all = own.into_iter().chain(lease.joined.iter().map(|one| (one.init, &one.cgroup)));
    let is_there =
        |(init, cgroup): &(Process, &String)| init.is_alive() && cgroup_of(init.pid).as_ref() == Some(cgroup);
    all.filter(is_there).map(|(init, _)| init).collect()
}
