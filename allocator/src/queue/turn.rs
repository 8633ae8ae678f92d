//! A turn of a waiter: it asks, and is granted, refused, or keeps its place.

use fgpu_spec::{Inventory, Request, Tier};

use super::{Ticket, Turn};
use crate::reserve::{Ask, Attempt, Refused, Stand};
use crate::store::new_nonce;
use crate::{Applicant, Change, Rules, Store, image};

impl Store {
    /// [`Store::reserve`], or a place in the queue.
    ///
    /// Call it anew after each [`Ticket::wait`], which should last [`super::look_again`] at most. The
    /// ticket's place ends with a grant, with an error, and with [`super::WaitQueue::leave`].
    ///
    /// # Errors
    /// As [`Store::reserve`], but for shortages that may pass.
    pub fn reserve_or_wait(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        tiers: &[Tier],
        applicant: &Applicant,
        ticket: &mut Ticket,
    ) -> Result<Turn, fgpu_spec::Error> {
        let turn = self
            .ask(inventory, rules, request, tiers)
            .map_err(Into::into)
            .and_then(|ask| self.take_turn(&ask, applicant, ticket));
        if turn.is_err() {
            // Its own error says more than what becomes of the place, which ends with the process at the
            // latest.
            let _ = self.queue().leave(ticket);
        }
        turn
    }

    fn take_turn(
        &self,
        ask: &Ask<'_>,
        applicant: &Applicant,
        ticket: &mut Ticket,
    ) -> Result<Turn, fgpu_spec::Error> {
        let nonce = new_nonce()?;
        let key = image::key_head(&applicant.key);
        if ticket.cancelled {
            return Err(cancelled(ask.request));
        }
        // A waiter that was woken is in haste. One that woke up by itself, as the first, looks for what it
        // was not told of.
        let (mut swept_key, mut thorough) = (ticket.place.is_some(), ticket.woken);
        loop {
            let stand = match ticket.place {
                None if !thorough => Stand::Aside,
                _ => Stand::Waits(ticket),
            };
            let same_key = (!swept_key || applicant.anchor.is_some()).then_some(&key);
            match self.attempt(ask, applicant, nonce, same_key, stand)? {
                Attempt::Done(lease) => {
                    self.tell(Change::Granted(&lease));
                    return Ok(Turn::Granted(lease));
                }
                Attempt::SameKey => {
                    self.sweep(Some(&key))?;
                    swept_key = true;
                    if let Some(lease) = self.anchored(applicant)? {
                        self.queue().leave(ticket)?;
                        return Ok(Turn::Granted(Box::new(lease)));
                    }
                }
                Attempt::NoPlace => {
                    // Either it was told why, or the file was made anew.
                    ticket.take_messages()?;
                    if ticket.cancelled {
                        return Err(cancelled(ask.request));
                    }
                    ticket.place = None;
                }
                Attempt::Refused(Refused { is_passing: false, error, .. }) => return Err(error),
                Attempt::Refused(Refused { behind: Some(waiter), .. })
                    if !self.queue().waits_still(&waiter) =>
                {
                    self.queue().sweep()?;
                }
                Attempt::Refused(Refused { place: None, .. }) => {
                    // Whether all of a long queue live is left to its first.
                    self.sweep(None)?;
                    (swept_key, thorough) = (true, true);
                }
                Attempt::Refused(Refused { error, place: Some((position, of)), .. }) => {
                    let leads = self.queue().leads(ticket)?;
                    if leads && !thorough {
                        self.reconcile()?;
                        thorough = true;
                        continue;
                    }
                    if leads && position > 1 {
                        // All ahead are dead, and would be in the way of later requests.
                        self.queue().sweep()?;
                        continue;
                    }
                    if leads {
                        self.queue().dispatch(ask.inventory, ask.rules)?;
                    }
                    return Ok(Turn::Waiting { position, of, reason: error });
                }
            }
        }
    }
}

fn cancelled(request: &Request) -> fgpu_spec::Error {
    let message = format!(
        "{} was taken out of the queue while it waited for room; ask again to queue up anew",
        request.text
    );
    fgpu_spec::Error::new(fgpu_spec::Code::Cancelled, message)
}
