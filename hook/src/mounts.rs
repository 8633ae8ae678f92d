//! The mount table of a mount namespace, `/proc/<pid>/mountinfo` (proc_pid_mountinfo(5)).

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// What statx(2) calls `stx_mnt_id`.
    pub(crate) id: u64,
    /// `major:minor` of the file system.
    pub(crate) device: String,
    /// Whether what is mounted on it appears in other mount namespaces too.
    pub(crate) shared: bool,
}

/// The mounts of one namespace, through a descriptor of its table.
#[derive(Debug)]
pub(crate) struct Mounts {
    file: File,
    entries: Vec<Entry>,
}

impl Mounts {
    /// `file` is an open `mountinfo`.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn new(file: File) -> std::io::Result<Self> {
        let mut mounts = Self { file, entries: Vec::new() };
        mounts.read()?;
        Ok(mounts)
    }

    fn read(&mut self) -> std::io::Result<()> {
        let mut text = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut text)?;
        self.entries = parse(&String::from_utf8_lossy(&text));
        Ok(())
    }

    /// The mount with this id; the table is read again if it is a new one.
    ///
    /// # Errors
    /// There is none, or the table cannot be read.
    pub(crate) fn get(&mut self, id: u64) -> std::io::Result<&Entry> {
        if !self.entries.iter().any(|entry| entry.id == id) {
            self.read()?;
        }
        self.entries.iter().find(|entry| entry.id == id).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    /// Whether a mount of this file system is in the table.
    pub(crate) fn has_device(&self, device: &str) -> bool {
        self.entries.iter().any(|entry| entry.device == device)
    }
}

fn parse(text: &str) -> Vec<Entry> {
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [shared:N]… - TYPE SOURCE OPTIONS; spaces in paths are
    // escaped.
    let entry = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        let device = fields.nth(1)?.to_owned();
        let optional = fields.skip(3).take_while(|field| *field != "-");
        let shared = optional.into_iter().any(|field| field.starts_with("shared:"));
        Some(Entry { id, device, shared })
    };
    text.lines().filter_map(entry).collect()
}

/// Where an open file is: which mount, and whether it is that mount's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileLocation {
    pub(crate) mount: u64,
    pub(crate) is_mount_root: bool,
    pub(crate) file: FileId,
    pub(crate) mode: u32,
    pub(crate) device: (u32, u32),
}

/// Names a file as long as it is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    file_system: (u32, u32),
    inode: u64,
}

/// Looks at an open file (Linux 5.8).
///
/// # Errors
/// The kernel does not tell.
pub(crate) fn place(fd: impl AsFd) -> std::io::Result<FileLocation> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, flags)?;
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID) {
        return Err(std::io::Error::other("statx(2) tells no mount id; fgpu-hook needs Linux 5.12"));
    }
    Ok(FileLocation {
        mount: stat.stx_mnt_id,
        is_mount_root: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        file: FileId { file_system: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino },
        mode: u32::from(stat.stx_mode),
        device: (stat.stx_rdev_major, stat.stx_rdev_minor),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_optional_fields_end_at_the_dash() {
        let text = "46 45 0:42 / / rw,relatime - overlay shared:9 rw\n\
                    47 46 0:45 / /a\\040b rw shared:2 master:1 - proc proc rw\n\
                    48 46 0:46 / /sys rw master:7 - sysfs sysfs rw\nnonsense\n";
        let entries = parse(text);
        let told: Vec<_> = entries.iter().map(|entry| (entry.id, &*entry.device, entry.shared)).collect();
        assert_eq!(told, [(46, "0:42", false), (47, "0:45", true), (48, "0:46", false)]);
    }

    #[test]
    fn this_process_finds_the_mount_of_its_root() {
        let mut mounts = Mounts::new(File::open("/proc/self/mountinfo").unwrap()).unwrap();
        let proc = place(File::open("/proc").unwrap()).unwrap();
        assert!(proc.is_mount_root);
        let device = mounts.get(proc.mount).unwrap().device.clone();
        assert!(mounts.has_device(&device));
        assert!(mounts.get(u64::MAX).is_err());
    }
}
