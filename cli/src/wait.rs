//! `fgpu wait`: sleeps until there is room, or until a container has given its share back.

use std::path::Path;
use std::time::{Duration, Instant};

use fgpu_allocator::Store;
use fgpu_spec::{Code, Error, Nonce};
use rustix::fs::inotify;

use crate::changes::Changes;
use crate::node::Node;
use crate::output::Output;
use crate::{explain, find, share};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Give up after that time: 30s, 2m
    #[arg(long, value_name = "DURATION", value_parser = fgpu_spec::parse_wait)]
    timeout: Option<Duration>,

    /// Annotations (`fraction=0.5`), or containers as in `fgpu release`
    #[arg(required = true, value_name = "KEY=VALUE|CONTAINER")]
    what: Vec<String>,
}

/// How often it looks although nothing has changed: a container whose end was not reported changes no file.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Waits.
///
/// # Errors
/// `timed-out` with the last reason; why it can never be, and what is wrong with the arguments or the node.
pub(crate) fn run(node: &Node, arguments: &Arguments) -> Result<Output, Error> {
    let directory = &node.config.state_dir;
    let store = Store::open(directory)?;
    let deadline = arguments.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let annotations: Result<Vec<_>, String> =
        arguments.what.iter().map(|what| share::annotation(what)).collect();
    // No container's name has an equals sign.
    if arguments.what.iter().any(|what| what.contains('=')) {
        let annotations = annotations.map_err(|words| Error::new(Code::InvalidRequest, words))?;
        let request = explain::request(node, &annotations)?;
        let inventory = node.inventory()?;
        let tiers = fgpu_engine::tiers(&request, &inventory)?;
        until(directory, deadline, || {
            let error = store.explain(&inventory, &node.config.rules(), &request, &tiers)?.error;
            match error {
                Some(error) if !heals(error.code) => Err(error),
                error => Ok(error.map(|error| error.message)),
            }
        })?;
        return Ok(format!("{} would be granted now.\n", request.text).into());
    }
    let leases = store.leases()?;
    let mut left: Vec<(Nonce, String)> = Vec::new();
    for what in &arguments.what {
        let lease = find::find(&leases, what)?;
        left.push((lease.grant.nonce, lease.key.short()));
    }
    until(directory, deadline, || {
        let (leases, stale) = (store.leases()?, store.stale()?);
        let holds = |nonce: &Nonce| {
            leases.iter().any(|lease| lease.grant.nonce == *nonce)
                && !stale.iter().any(|lease| lease.grant.nonce == *nonce)
        };
        left.retain(|(nonce, _)| holds(nonce));
        let names: Vec<_> = left.iter().map(|(_, name)| name.as_str()).collect();
        Ok((!names.is_empty()).then(|| format!("{} still holds a share", names.join(", "))))
    })?;
    Ok(Output::default())
}

/// Whether a refusal may go away when containers end.
fn heals(code: Code) -> bool {
    matches!(code, Code::NoCapacity | Code::Fragmented | Code::NoMigPlacement | Code::Denied)
}

/// Looks until there is no `reason` to wait any more: whenever the allocator file has changed, and once a
/// second.
fn until(
    directory: &Path,
    deadline: Option<Instant>,
    mut reason: impl FnMut() -> Result<Option<String>, Error>,
) -> Result<(), Error> {
    // Each change of the file is an exchange of names.
    let changes = Changes::of(directory, inotify::WatchFlags::MOVED_TO)?;
    loop {
        let Some(why) = reason()? else { return Ok(()) };
        let left = deadline.map(|time| time.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Error::new(Code::TimedOut, why));
        }
        changes.sleep(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN)))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_until_there_is_no_reason_left() {
        let directory = tempfile::tempdir().unwrap();
        let mut looks = 0;
        let waited = until(directory.path(), None, || {
            looks += 1;
            // As the allocator does: another file takes the name.
            std::fs::write(directory.path().join("t"), "").unwrap();
            std::fs::rename(directory.path().join("t"), directory.path().join("allocations.json")).unwrap();
            Ok((looks < 3).then(|| "not yet".to_owned()))
        });
        assert_eq!((waited, looks), (Ok(()), 3));
    }

    #[test]
    fn time_runs_out_with_the_last_reason() {
        let directory = tempfile::tempdir().unwrap();
        let error =
            until(directory.path(), Some(Instant::now()), || Ok(Some("full".to_owned()))).unwrap_err();
        assert_eq!(error, Error::new(Code::TimedOut, "full"));
    }
}
