//! `fgpu/wait`: a place in the queue until there is room, or the time is up.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fgpu_allocator::{Applicant, Lease, Process, Rules, Store, Ticket, Turn, look_again};
use fgpu_spec::{Code, Error, Inventory, Request, Tier};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::signals::HeldSignals;
use crate::watch::Watch;

/// What is asked for, and what decides it.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) inventory: &'a Inventory,
    /// As they are at each attempt.
    pub(crate) rules: &'a dyn Fn() -> Rules,
    pub(crate) request: &'a Request,
    pub(crate) tiers: &'a [Tier],
}

/// Takes what is asked for as soon as there is room, for `wait` at most. Each attempt is made under a new
/// `guard`; the one of the attempt that succeeded is returned.
///
/// # Errors
/// Those of [`Store::reserve`]; [`Code::TimedOut`] with the place in the queue and the last reason when
/// `wait` was given and is over; [`Code::Cancelled`] when one of `watch` is gone. A signal that ends the
/// process gives the place back first.
pub(crate) fn until_room<Guard>(
    store: &Store,
    ask: &Ask<'_>,
    applicant: &Applicant,
    wait: Duration,
    watch: &Watch,
    mut guard: impl FnMut() -> Result<Guard, Error>,
) -> Result<(Lease, Guard), Error> {
    let &Ask { inventory, rules, request, tiers } = ask;
    if wait.is_zero() {
        let guard = guard()?;
        return Ok((store.reserve(inventory, &rules(), request, tiers, applicant)?, guard));
    }
    let deadline = Instant::now().checked_add(wait);
    let mut ticket = Ticket::new(Process::current()?);
    loop {
        let held = guard()?;
        let turn = store.reserve_or_wait(inventory, &rules(), request, tiers, applicant, &mut ticket)?;
        let (position, of, reason) = match turn {
            Turn::Granted(lease) => return Ok((*lease, held)),
            Turn::Waiting { position, of, reason } => (position, of, reason),
        };
        drop(held);
        let left = deadline.map_or(Duration::MAX, |time| time.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            store.queue().leave(&mut ticket)?;
            let message = format!(
                "no room came within {}; it was number {position} of {of} in the queue: {}",
                in_words(wait),
                reason.message
            );
            return Err(Error::new(Code::TimedOut, message));
        }
        sleep(store, &mut ticket, left.min(look_again(position)), watch)?;
        if let Err(error) = watch.check() {
            store.queue().leave(&mut ticket)?;
            return Err(error);
        }
    }
}

/// Sleeps until the ticket is woken, one of `watch` is gone or `longest` is over. An ending signal gives the
/// place back before it ends us.
fn sleep(store: &Store, ticket: &mut Ticket, longest: Duration, watch: &Watch) -> Result<(), Error> {
    let held = HeldSignals::new()?;
    let Some(place) = ticket.fd() else { return Ok(()) };
    let mut fds = vec![PollFd::new(place, PollFlags::POLLIN), PollFd::new(held.as_fd(), PollFlags::POLLIN)];
    fds.extend(watch.fds());
    // Rounded up, or the last millisecond would be a busy loop.
    let timeout = PollTimeout::try_from(longest.as_millis() + 1).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => {
            return Err(Error::new(Code::Internal, format!("cannot wait for room: {errno}")));
        }
    }
    let ends = fds[1].any().unwrap_or(false);
    if ends {
        store.queue().leave(ticket)?;
    } else {
        ticket.wait(Duration::ZERO)?;
    }
    Ok(())
}

/// `30 s`, `1.5 s`, rounded to a millisecond: a limit that was shortened by what has passed has odd
/// nanoseconds.
fn in_words(time: Duration) -> String {
    let millis = (time.as_nanos() + 500_000) / 1_000_000;
    let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests;
