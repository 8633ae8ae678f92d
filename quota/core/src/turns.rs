//! This container's place among those that use a GPU.
//!
//! As with the ledger ([`process`](crate::process)) the mapping keeps the lock by which the kernel knows that the
//! container lives; here it is shared by all of its processes. Without a place a container keeps its own share and
//! takes no turns: a node that was set up by an older version has no such file, and at most 64 containers have a
//! place on one GPU.

use fgpu_wire::TURNS_PATH;
use fgpu_wire::turns::{self, Turn, Turns};

use crate::sys::{self, File, InChild};

/// How often the right to seek a place is asked for, and how long to wait in between (microseconds). Who has it is done
/// in less than a millisecond, or dead.
const TRIES: u32 = 100;
const PAUSE: u32 = 100;

/// Joins the containers on the GPU with this minor number, for the rest of the process's life.
pub fn join(minor: u32, nonce: &[u8; 16]) -> Option<Turn<'static>> {
    let file = File::open(TURNS_PATH, true).ok()?;
    if file.size().ok()? < turns::SIZE {
        return None;
    }
    let at = file.map(turns::SIZE, true).ok()?;
    // SAFETY: mapped for good unless unmapped below, of the right size, and every bit pattern is a `Turns`.
    let turns: &'static Turns = unsafe { at.cast().as_ref() };
    let is_ours_alone = sys::at_fork(at, turns::SIZE, InChild::Absent).is_ok();
    let place = if is_ours_alone && turns.is_valid() { seek(&file, turns, minor, nonce) } else { None };
    if place.is_none() {
        // SAFETY: nothing but `turns` refers to it, and that is not used again.
        unsafe { sys::unmap(at, turns::SIZE) };
    }
    turns.at(place?)
}

fn seek(file: &File, turns: &Turns, minor: u32, nonce: &[u8; 16]) -> Option<usize> {
    for _ in 0..TRIES {
        if file.lock_byte(turns::SEEKING).ok()? {
            let place = find(file, turns, minor, nonce);
            let _ = file.unlock_byte(turns::SEEKING);
            return place;
        }
        sys::sleep(PAUSE);
    }
    None
}

/// The place that another process of the container took, or a free one.
fn find(file: &File, turns: &Turns, minor: u32, nonce: &[u8; 16]) -> Option<usize> {
    let mut places = turns::places(minor);
    if let Some(place) = places.clone().find(|&place| turns.is(place, nonce))
        && file.lock_byte_shared(place).unwrap_or(false)
    {
        return Some(place);
    }
    let place = places.find(|&place| file.lock_byte(place).unwrap_or(false))?;
    file.ensure_room(turns::place_at(place), turns::PLACE).ok()?;
    turns.take(place, nonce);
    file.lock_byte_shared(place).ok()?.then_some(place)
}

/// Whether the container that has a place lives. What cannot be found out counts as life.
pub fn lives(place: usize) -> bool {
    let Ok(file) = File::open(TURNS_PATH, true) else { return true };
    file.is_byte_locked(place).unwrap_or(true)
}
