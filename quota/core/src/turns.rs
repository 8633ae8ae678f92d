//! This container's place among those that use a GPU.
//!
//! As with the ledger ([`process`](crate::process)) a mapping keeps the lock by which the kernel knows that the
//! container lives; here it is shared by all of its processes. The mapping is for that alone and never touched: every
//! container can cut this file short, and who touches a page beyond a file's end is killed. It is read and written by system
//! calls, each with a descriptor of its own: one that stays open might be closed, and its number used, by the application.
//!
//! Without a place a container keeps its own share and takes no turns: a node that was set up by an older version has no
//! such file, and at most 64 containers have a place on one GPU.

use core::mem::size_of_val;
use core::slice;

use fgpu_wire::TURNS_PATH;
use fgpu_wire::turns::{self, Board, PLACES, Place, SAID_AT, Said};

use crate::sys::{self, File, InChild};

/// How often the right to seek a place is asked for, and how long to wait in between (microseconds). Who has it is done
/// in less than a millisecond, or dead.
const TRIES: u32 = 100;
const PAUSE: u32 = 100;
/// How much of the file is mapped for the lock's sake.
const MAPPED: usize = 4096;

/// The node's file.
pub struct Shared;

impl Board for Shared {
    fn exchange(&self, place: usize, said: &Said, places: &mut [Place; PLACES]) {
        if let Ok(file) = File::open(TURNS_PATH, true) {
            say(&file, place, said);
            read(&file, place / PLACES * PLACES, places);
        }
    }

    fn say(&self, place: usize, said: &Said) {
        if let Ok(file) = File::open(TURNS_PATH, true) {
            say(&file, place, said);
        }
    }
}

fn say(file: &File, place: usize, said: &Said) {
    // SAFETY: three words without padding, read only.
    let bytes = unsafe { slice::from_raw_parts(core::ptr::from_ref(said).cast(), size_of_val(said)) };
    // On a full file system the others do not hear of it.
    let _ = file.write_at(bytes, turns::place_at(place) + SAID_AT);
}

/// Reads places from number `first` on.
fn read(file: &File, first: usize, places: &mut [Place]) {
    let length = size_of_val(places);
    // SAFETY: words and bytes without padding, for which every content is a value.
    let bytes = unsafe { slice::from_raw_parts_mut(places.as_mut_ptr().cast::<u8>(), length) };
    // Where the file ends early it stays zeros.
    let _ = file.read_at(bytes, turns::place_at(first));
}

/// Joins the containers on the GPU with this minor number, for the rest of the process's life, and gives its container's place.
pub fn join(minor: u32, nonce: &[u8; 16]) -> Option<usize> {
    let file = File::open(TURNS_PATH, true).ok()?;
    let mut header = [0; turns::HEADER];
    if file.read_at(&mut header, 0).ok()? != header.len() || header != turns::encode() {
        return None;
    }
    let at = file.map(MAPPED, false).ok()?;
    let is_ours_alone = sys::at_fork(at, MAPPED, InChild::Absent).is_ok();
    let place = if is_ours_alone { seek(&file, minor, nonce) } else { None };
    if place.is_none() {
        // SAFETY: nothing refers to it.
        unsafe { sys::unmap(at, MAPPED) };
    }
    place
}

fn seek(file: &File, minor: u32, nonce: &[u8; 16]) -> Option<usize> {
    for _ in 0..TRIES {
        if file.lock_byte(turns::SEEKING).ok()? {
            let place = find(file, minor, nonce);
            let _ = file.unlock_byte(turns::SEEKING);
            return place;
        }
        sys::sleep(PAUSE);
    }
    None
}

/// The place that another process of the container took, or a free one.
fn find(file: &File, minor: u32, nonce: &[u8; 16]) -> Option<usize> {
    let mut numbers = turns::places(minor);
    let mut places = [Place::default(); PLACES];
    read(file, numbers.start, &mut places);
    let taken = numbers.clone().zip(&places).find(|(_, place)| place.nonce == *nonce);
    if let Some((number, _)) = taken
        && file.lock_byte_shared(number).unwrap_or(false)
    {
        return Some(number);
    }
    let number = numbers.find(|&number| file.lock_byte(number).unwrap_or(false))?;
    let wrote = file.write_at(nonce, turns::place_at(number)).ok()?;
    say(file, number, &Said::default());
    (wrote == nonce.len() && file.lock_byte_shared(number).ok()?).then_some(number)
}

/// Whether the container that has a place lives. What cannot be found out counts as life.
pub fn lives(place: usize) -> bool {
    let Ok(file) = File::open(TURNS_PATH, true) else { return true };
    file.is_byte_locked(place).unwrap_or(true)
}
