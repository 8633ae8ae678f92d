//! What containers put into the state directory beyond what is theirs there.
//!
//! A container can write its ledger and the node's turns, so it can also make them longer than they are, until their file
//! system is full and nobody's lease can be written any more. No program reads past their ends: what is there can be
//! cut off at any time, also while the files are in use.

use std::fs;
use std::path::Path;

use fgpu_wire::{ledger, turns};
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;

/// Cuts off what stands behind the ends of the ledgers and of the turns in a state directory, and tells whether there was
/// anything. What cannot be opened or cut stays.
pub fn cut_overgrown(state_dir: &Path) -> bool {
    let folders = fs::read_dir(state_dir.join("containers")).into_iter().flatten().flatten();
    let ledgers = folders.map(|folder| (folder.path().join("ledger"), ledger::SIZE));
    let all = ledgers.chain([(state_dir.join("shared/turns"), turns::SIZE)]);
    all.fold(false, |any, (path, size)| cut(&path, size as u64).unwrap_or(false) || any)
}

fn cut(path: &Path, size: u64) -> rustix::io::Result<bool> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))?;
    let stat = rustix::fs::fstat(&fd)?;
    let length = u64::try_from(stat.st_size).unwrap_or(0);
    // Of 512 bytes each, whatever the file system's are (stat(2)).
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    if length <= size && allocated <= size.next_multiple_of(4096) {
        return Ok(false);
    }
    // Also to the length that it has: blocks may have been allocated behind the end (FALLOC_FL_KEEP_SIZE).
    rustix::fs::ftruncate(&fd, length.min(size))?;
    Ok(true)
}
