//! File systems on which nothing is mounted: what is in them is the kernel talking.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;

/// Magic numbers of linux/magic.h.
const PROC: u32 = 0x9fa0;
const KERNELS: [u32; 9] = [
    PROC,
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
];

fn magic(fd: impl AsFd) -> rustix::io::Result<u32> {
    // The magic numbers have 32 bits, the field's width is the architecture's.
    fstatfs(fd).map(|stat| stat.f_type as u32)
}

/// Whether a file is on a file system of the kernel's own.
pub(crate) fn is_kernels(fd: impl AsFd) -> rustix::io::Result<bool> {
    magic(fd).map(|magic| KERNELS.contains(&magic))
}

/// Whether a file is on procfs.
pub(crate) fn is_proc(fd: impl AsFd) -> rustix::io::Result<bool> {
    magic(fd).map(|magic| magic == PROC)
}
