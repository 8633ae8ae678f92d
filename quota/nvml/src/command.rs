//! The name of a process of the container.

use core::ffi::{c_char, c_uint};
use core::fmt::Write as _;

use fgpu_quota_core::sys;

use crate::abi::{INVALID_ARGUMENT, NOT_FOUND, Result, SUCCESS};

/// The longest name that is returned, with its NUL.
pub(crate) const LONGEST: usize = 4096;

/// Writes the process's command, up to its first argument, and zeros after it; `-` if there is none, since
/// nvidia-smi does not show a process without a name. Returns whether the process exists.
pub(crate) fn read(pid: u32, name: &mut [u8; LONGEST]) -> bool {
    let mut path = Path { text: [0; 32], length: 0 };
    // Cannot fail: a path in /proc has at most 24 bytes.
    let _ = write!(path, "/proc/{pid}/cmdline");
    let text = path.text.get(..path.length).and_then(|text| core::str::from_utf8(text).ok());
    let file = text.and_then(|text| sys::File::open(text, false).ok());
    let is_there = file.is_some();
    let Some((_, room)) = name.split_last_mut() else { return is_there };
    let length = file.and_then(|file| file.read(room).ok()).unwrap_or(0);
    let end = room.iter().take(length).position(|&byte| byte == 0).unwrap_or(length);
    room.iter_mut().skip(end).for_each(|byte| *byte = 0);
    if end == 0
        && let Some(start) = room.first_mut()
    {
        *start = b'-';
    }
    is_there
}

/// The name of a process of the container's own pid namespace. The real library would take the number for one
/// of the host's.
///
/// # Safety
/// As `nvmlSystemGetProcessName`.
pub(crate) unsafe fn name(pid: c_uint, name: *mut c_char, length: c_uint) -> Result {
    if name.is_null() || length == 0 {
        return INVALID_ARGUMENT;
    }
    let mut found = [0; LONGEST];
    if !read(pid, &mut found) {
        return NOT_FOUND;
    }
    let room = (length as usize).min(LONGEST) - 1;
    let end = found.iter().position(|&byte| byte == 0).unwrap_or(0).min(room);
    // SAFETY: the caller's buffer has room for `length` bytes, and at most `room` and a NUL are written.
    unsafe {
        core::ptr::copy_nonoverlapping(found.as_ptr().cast(), name, end);
        name.add(end).write(0);
    }
    SUCCESS
}

/// A short text on the stack.
struct Path {
    text: [u8; 32],
    length: usize,
}

impl core::fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.text.get_mut(self.length..self.length + text.len()).ok_or(core::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}
