//! `fgpu/wait`: try again whenever a lease is released, until the time is up.

use std::path::Path;
use std::time::{Duration, Instant};

use fgpu_spec::{Code, Error};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::AsFd;

/// At least this often the reservation is tried again even if no file changed: a container that was killed
/// together with everything that would have released it is found only by looking.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Runs `attempt` until it succeeds, fails for a reason that time does not heal, or `wait` is over.
///
/// # Errors
/// What `attempt` says; [`Code::TimedOut`] around the last reason when `wait` was given and is over.
pub(crate) fn until_room<T>(
    directory: &Path,
    wait: Duration,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let short = |error: &Error| matches!(error.code, Code::NoCapacity | Code::Fragmented);
    if wait.is_zero() {
        return attempt();
    }
    let deadline = Instant::now() + wait;
    let changes = Watch::new(directory)?;
    loop {
        let error = match attempt() {
            Err(error) if short(&error) => error,
            done => return done,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message = format!("no room came within {} s: {}", wait.as_secs(), error.message);
            return Err(Error::new(Code::TimedOut, message));
        }
        changes.next(left.min(LOOK_AGAIN))?;
    }
}

/// Watches the allocator file, which every change replaces by a rename.
struct Watch(Inotify);

impl Watch {
    fn new(directory: &Path) -> Result<Self, Error> {
        let make = || {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            inotify.add_watch(directory, AddWatchFlags::IN_MOVED_TO)?;
            nix::Result::Ok(inotify)
        };
        make().map(Self).map_err(|errno| Error::io("watch", directory, &errno.into()))
    }

    /// Waits for a change, at most for `longest`.
    fn next(&self, longest: Duration) -> Result<(), Error> {
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            // The events say nothing that the file does not; drop them.
            Ok(_) => while self.0.read_events().is_ok_and(|events| !events.is_empty()) {},
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => {
                return Err(Error::new(Code::Internal, format!("cannot wait for a release: {errno}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short() -> Error {
        Error::new(Code::NoCapacity, "full")
    }

    #[test]
    fn without_a_wait_there_is_one_attempt() {
        let mut attempts = 0;
        let result: Result<(), _> = until_room(Path::new("/nonexistent"), Duration::ZERO, || {
            attempts += 1;
            Err(short())
        });
        assert_eq!((result, attempts), (Err(short()), 1));
    }

    #[test]
    fn a_release_wakes_the_waiter() {
        let directory = tempfile::tempdir().unwrap();
        let mut attempts = 0;
        let result = until_room(directory.path(), Duration::from_secs(60), || {
            attempts += 1;
            if attempts == 1 {
                // As the allocator does: a temporary file and a rename, after this attempt has looked.
                std::fs::write(directory.path().join("t"), "").unwrap();
                std::fs::rename(directory.path().join("t"), directory.path().join("allocations.json"))
                    .unwrap();
                return Err(short());
            }
            Ok(attempts)
        });
        assert_eq!(result, Ok(2));
    }

    #[test]
    fn time_runs_out_with_the_last_reason() {
        let directory = tempfile::tempdir().unwrap();
        let result: Result<(), _> = until_room(directory.path(), Duration::from_millis(5), || Err(short()));
        let error = result.unwrap_err();
        assert_eq!(error.code, Code::TimedOut);
        assert!(error.message.ends_with("full"), "{error}");
    }

    #[test]
    fn what_time_does_not_heal_ends_the_wait() {
        let directory = tempfile::tempdir().unwrap();
        let never = Error::new(Code::TooLarge, "never");
        let result: Result<(), _> =
            until_room(directory.path(), Duration::from_secs(60), || Err(never.clone()));
        assert_eq!(result, Err(never));
    }
}
