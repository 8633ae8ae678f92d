//! Reserves before the call of the driver, and books or gives back after it.

use fgpu_quota_core::allocations::{Entry, Kind, Table};
use fgpu_quota_core::process::Process;

use crate::driver::{Device, OUT_OF_MEMORY, Result, SUCCESS};
use crate::{meter, place};

/// A result whose error the application gets.
pub(crate) type Placed<T> = core::result::Result<T, Result>;

/// Memory that is reserved in the ledger and not booked yet.
pub(crate) struct Reserved {
    /// This process.
    pub(crate) process: &'static Process,
    /// Number in the grant.
    pub(crate) gpu: usize,
    /// What it counts for.
    pub(crate) bytes: u64,
}

/// This process's account. Without one nothing is allocated: fail closed.
pub(crate) fn account() -> Placed<&'static Process> {
    Process::current().map_err(|refusal| {
        refusal.say();
        OUT_OF_MEMORY
    })
}

impl Reserved {
    /// Reserves on the GPU that `place` says; the error is what the application gets.
    pub(crate) fn new(bytes: u64, place: impl FnOnce(&Process) -> Placed<usize>) -> Placed<Self> {
        let process = account()?;
        let gpu = place(process)?;
        let reserved = process.reserve(gpu, bytes).or_else(|| {
            // First this process's pools and graphs give up what they do not use.
            if meter::give_up_spare(process, gpu) { process.reserve(gpu, bytes) } else { None }
        });
        Ok(Self { process, gpu, bytes: reserved.ok_or(OUT_OF_MEMORY)? })
    }

    /// The driver refused.
    pub(crate) fn give_back(self) {
        self.process.release(self.gpu, self.bytes);
    }

    /// The driver agreed; `key` names the allocation. If the kernel has no memory for the entry, the
    /// allocation counts until the process ends.
    pub(crate) fn book(self, kind: Kind, key: u64) {
        let Self { process, gpu, bytes } = self;
        let owner = place::current();
        let mut table = process.allocations.lock();
        let owner = root(&mut table, owner);
        table.insert(Entry { key, kind, gpu: gpu as u32, bytes, link: 0, owner });
    }
}

/// The context with which what is allocated in `context` ends: a green context's memory is the primary's.
pub(crate) fn root(table: &mut Table, context: u64) -> u64 {
    table.get_mut(Kind::Context, context).map_or(context, |entry| entry.owner)
}

/// This process's account, and the number of a device in the grant.
pub(crate) fn account_on(device: Device) -> Placed<(&'static Process, usize)> {
    let process = account()?;
    Ok((process, place::of_device(process, device)?))
}

/// Reserves exactly so many bytes.
pub(crate) fn exactly(process: &Process, gpu: usize, bytes: u64) -> Placed<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let reserved = process.reserve_between(gpu, bytes, bytes).or_else(|| {
        if meter::give_up_spare(process, gpu) { process.reserve_between(gpu, bytes, bytes) } else { None }
    });
    reserved.ok_or(OUT_OF_MEMORY)
}

/// Reserves, calls the driver, books. Invalid arguments are left for the driver to reject.
///
/// # Safety
/// If `call` succeeds, it has written `out`.
pub(crate) unsafe fn allocate<P: Copy>(
    out: *mut P,
    bytes: u64,
    kind: Kind,
    key: impl FnOnce(P) -> u64,
    place: impl FnOnce(&Process) -> Placed<usize>,
    call: impl FnOnce() -> Result,
) -> Result {
    if bytes == 0 || out.is_null() {
        return call();
    }
    let reserved = match Reserved::new(bytes, place) {
        Ok(reserved) => reserved,
        Err(error) => return error,
    };
    let result = call();
    if result == SUCCESS {
        // SAFETY: the caller's promise.
        reserved.book(kind, key(unsafe { *out }));
    } else {
        reserved.give_back();
    }
    result
}

/// Calls the driver, gives back. The key is removed first: once the driver has freed it, another thread may
/// get the same. `None`: there was no entry.
pub(crate) fn give_back(kind: Kind, key: u64, call: impl FnOnce() -> Result) -> (Result, Option<Entry>) {
    let Some(process) = Process::registered() else { return (call(), None) };
    let entry = process.allocations.lock().remove(kind, key);
    let result = call();
    let Some(entry) = entry else { return (result, None) };
    if result == SUCCESS {
        process.release(entry.gpu as usize, entry.bytes);
    } else {
        process.allocations.lock().insert(entry);
    }
    (result, Some(entry))
}
