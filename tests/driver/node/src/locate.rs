//! Where a library finds the node it belongs to.
//!
//! A library in `<root>/usr/lib/…` belongs to the node installed at `<root>`: the folder is the first above
//! the library's own file that has a `run/nvidia-sim/config`. In a container that is `/` (the folder is
//! bind-mounted at the same path), on the host the driver root; no environment variable has a say.

use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::sys;

/// The folder below the root that holds `config` and `state`.
pub const FOLDER: &str = "run/nvidia-sim";

/// A driver root, without a slash at its end (`/` is empty).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(Vec<u8>);

impl Root {
    /// `/`.
    pub const SLASH: Self = Self(Vec::new());

    /// The root above the file from which the code at `address` was mapped.
    pub fn of_library(address: usize) -> Option<Self> {
        let maps = sys::read_file(c"/proc/self/maps").ok()?;
        let mut folder = mapped_file(&maps, address)?;
        while let Some(slash) = folder.iter().rposition(|&byte| byte == b'/') {
            folder = &folder[..slash];
            let root = Self(folder.to_vec());
            if sys::exists(&root.join("run/nvidia-sim/config")) {
                return Some(root);
            }
        }
        None
    }

    /// The path of something below the root.
    pub fn join(&self, path: &str) -> CString {
        let bytes: Vec<u8> = self.0.iter().copied().chain([b'/']).chain(path.bytes()).collect();
        CString::new(bytes).unwrap_or_default()
    }
}

/// The file mapped at `address` in a `/proc/<pid>/maps`: `start-end mode offset device inode   path`.
fn mapped_file(maps: &[u8], address: usize) -> Option<&[u8]> {
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let text = core::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
        let (start, end) = text.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = &line[line.iter().position(|&byte| byte == b'/')?..];
        (start..end).contains(&address).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"55d0-55e0 r-xp 00000000 08:01 12 /usr/bin/cat\n\
        7f00-7f10 rw-p 00000000 00:00 0\n\
        7f10-7f20 r-xp 00001000 08:01 99                 /a root/usr/lib/libcuda.so.1\n";

    #[test]
    fn the_file_of_an_address_is_found() {
        assert_eq!(mapped_file(MAPS, 0x7f1f), Some(&b"/a root/usr/lib/libcuda.so.1"[..]));
        assert_eq!(mapped_file(MAPS, 0x55d0), Some(&b"/usr/bin/cat"[..]));
    }

    #[test]
    fn anonymous_and_unmapped_addresses_have_none() {
        assert_eq!(mapped_file(MAPS, 0x7f05), None);
        assert_eq!(mapped_file(MAPS, 0x7f20), None);
    }

    #[test]
    fn paths_join_below_the_root() {
        assert_eq!(Root(Vec::new()).join("dev").as_bytes(), b"/dev");
        assert_eq!(Root(b"/x".to_vec()).join("run/y").as_bytes(), b"/x/run/y");
    }
}
