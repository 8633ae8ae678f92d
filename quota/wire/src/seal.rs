//! Where the real driver libraries are in a container: at a path that no image can know and no loader
//! searches.
//!
//! ```text
//! /run/fgpu/driver-RRRRRRRRRRRRRRRRDDDDDDDDDDDDDDDD/cuda
//!                  │               └ device number of the file system of `limits`, 16 hexadecimal digits
//!                  └ random, new at each boot, 16 hexadecimal digits
//! ```
//!
//! A quota library has this path as its only `DT_NEEDED`. It is built with zeros for the digits. The host
//! makes a copy of it at each boot and writes the digits into it. The copy in the container reads the path in
//! its own dynamic section. So it finds the real library, and knows on which file system its limits must be.

use core::fmt;

/// `DT_NEEDED` of the CUDA quota library as it is built.
const UNSEALED_CUDA: &str = "/run/fgpu/driver-00000000000000000000000000000000/cuda";
/// `DT_NEEDED` of the NVML quota library as it is built.
const UNSEALED_NVML: &str = "/run/fgpu/driver-00000000000000000000000000000000/nvml";
/// The path before the digits.
const PREFIX: &str = "/run/fgpu/driver-";
const DIGITS: usize = 32;

/// The meaning of the digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seal {
    /// Random, so that no image knows the path.
    pub random: u64,
    /// `st_dev` of the limits file. 0: any file system, and a mount that need not be read-only, for tests
    /// without mounts.
    pub device: u64,
}

/// A file is not a quota library that can be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsealable {
    /// How often the path with zeros is in it; it should be once.
    pub found: usize,
}

impl Seal {
    /// The path of the real CUDA library as the quota library has it before it is sealed.
    pub const fn unsealed_cuda() -> &'static str {
        UNSEALED_CUDA
    }

    /// The path of the real NVML as the quota library has it before it is sealed.
    pub const fn unsealed_nvml() -> &'static str {
        UNSEALED_NVML
    }

    /// Decodes the path of a real library.
    pub fn of_path(path: &[u8]) -> Option<Self> {
        let digits = path.strip_prefix(PREFIX.as_bytes())?;
        let (digits, rest) = digits.split_at_checked(DIGITS)?;
        let (random, device) = digits.split_at_checked(DIGITS / 2)?;
        rest.starts_with(b"/").then_some(Self { random: number(random)?, device: number(device)? })
    }

    /// Writes the digits into a quota library, given as the bytes of its file.
    ///
    /// # Errors
    /// The path with zeros is not in it exactly once.
    pub fn apply(&self, library: &mut [u8]) -> Result<(), Unsealable> {
        let zeros = &UNSEALED_CUDA.as_bytes()[..PREFIX.len() + DIGITS];
        let mut places = library.windows(zeros.len()).enumerate().filter(|(_, window)| *window == zeros);
        let (first, others) = (places.next(), places.count());
        match first.map(|(at, _)| at) {
            Some(at) if others == 0 => {
                let digits = library.iter_mut().skip(at + PREFIX.len()).take(DIGITS);
                for (index, digit) in digits.enumerate() {
                    let number = if index < DIGITS / 2 { self.random } else { self.device };
                    let nibble = number >> (60 - 4 * (index % 16)) & 0xf;
                    *digit = b"0123456789abcdef"[nibble as usize];
                }
                Ok(())
            }
            first => Err(Unsealable { found: usize::from(first.is_some()) + others }),
        }
    }
}

/// The path of the folder with the real libraries.
impl fmt::Display for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}{:016x}", self.random, self.device)
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let digit = |number: u64, byte: &u8| Some(number << 4 | u64::from(char::from(*byte).to_digit(16)?));
    digits.iter().try_fold(0, digit)
}

#[cfg(test)]
mod tests;
