//! The holder of the allocator's lock, in words.

use std::fmt;

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its pid, in our pid namespace; 0 or less for one of another.
    pub pid: i32,
    /// When it started, in clock ticks since boot: another process of that pid has another number.
    pub start: Option<u64>,
    /// Its name, `/proc/<pid>/comm`.
    pub name: String,
    /// Its state, as `/proc/<pid>/stat` has it: `T` is stopped, `D` waits for a device.
    pub state: Option<char>,
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid <= 0 {
            return write!(f, "a process of another PID namespace");
        }
        write!(f, "{} (process {}", self.name, self.pid)?;
        match self.state {
            Some('T' | 't') => write!(f, ", which is stopped)"),
            Some('D') => write!(f, ", which waits for a device)"),
            _ => write!(f, ")"),
        }
    }
}
