//! bpf(2), as much of it as device programs need. Numbers and layouts are those of
//! `include/uapi/linux/bpf.h`; the kernel takes a `union bpf_attr` that is shorter than its own and reads the
//! rest as zero.
//!
//! libcgroups has these calls too, but through libbpf, which wants libelf and zlib.

#![allow(unsafe_code, reason = "bpf(2) takes a union of records with addresses in them")]

use std::ffi::{CStr, c_int, c_long};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

use super::program::Instruction;

/// `enum bpf_cmd`.
const PROG_LOAD: c_int = 5;
const OBJ_PIN: c_int = 6;
const OBJ_GET: c_int = 7;
const PROG_ATTACH: c_int = 8;
const PROG_DETACH: c_int = 9;
const PROG_GET_FD_BY_ID: c_int = 13;
const OBJ_GET_INFO_BY_FD: c_int = 15;
const PROG_QUERY: c_int = 16;

/// `BPF_PROG_TYPE_CGROUP_DEVICE` of `enum bpf_prog_type`.
const TYPE: u32 = 15;
/// `BPF_CGROUP_DEVICE` of `enum bpf_attach_type`.
const ATTACH_TYPE: u32 = 6;

/// `BPF_F_ALLOW_MULTI`: several programs at one cgroup, all of which must allow.
pub(super) const ALLOW_MULTI: u32 = 1 << 1;
/// `BPF_F_REPLACE`: since Linux 5.6, and only together with [`ALLOW_MULTI`].
pub(super) const REPLACE: u32 = 1 << 2;

/// Our programs' name, at most 15 characters, as bpftool shows it.
const NAME: &[u8; 16] = b"fgpu_devices\0\0\0\0";

/// For `BPF_PROG_LOAD`, up to `prog_name`.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

/// For `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
#[repr(C)]
struct Pin {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// For `BPF_PROG_ATTACH` and `BPF_PROG_DETACH`.
#[repr(C)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
    replace_bpf_fd: u32,
}

/// For `BPF_PROG_GET_FD_BY_ID`.
#[repr(C)]
struct GetFd {
    prog_id: u32,
    next_id: u32,
    open_flags: u32,
}

/// For `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct GetInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// `struct bpf_prog_info`, up to `map_ids`.
#[repr(C)]
#[derive(Default)]
struct Info {
    prog_type: u32,
    id: u32,
    tag: [u8; 8],
    jited_prog_len: u32,
    xlated_prog_len: u32,
    jited_prog_insns: u64,
    xlated_prog_insns: u64,
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
}

/// For `BPF_PROG_QUERY`, up to `prog_cnt`.
#[repr(C)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
}

/// # Safety
/// `attr` is the record that the command reads, and every address in it is valid for what the command does to
/// it.
unsafe fn bpf<T>(command: c_int, attr: &mut T) -> Result<c_long, Errno> {
    // SAFETY: the kernel reads and writes at most `size_of::<T>()` bytes of `attr`; the caller vouches for
    // the rest.
    Errno::result(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) })
}

/// # Safety
/// As for [`bpf`]; and the command answers with a new descriptor.
unsafe fn bpf_fd<T>(command: c_int, attr: &mut T) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller vouches for `attr`.
    let fd = unsafe { bpf(command, attr) }?;
    let fd = c_int::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor for us, with O_CLOEXEC, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: BorrowedFd) -> u32 {
    // A borrowed descriptor is never negative.
    fd.as_raw_fd().cast_unsigned()
}

/// Loads a device program. The verifier reads it: what it does not accept is `EINVAL` or `EACCES`.
pub(super) fn load(program: &[Instruction]) -> Result<OwnedFd, Errno> {
    let mut attr = Load {
        prog_type: TYPE,
        insn_cnt: u32::try_from(program.len()).map_err(|_| Errno::E2BIG)?,
        insns: program.as_ptr() as u64,
        // Only the helpers that a program calls ask for a license, and none is called.
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *NAME,
    };
    // SAFETY: `insns` are `insn_cnt` records of 8 bytes, `license` ends with NUL; both are only read.
    unsafe { bpf_fd(PROG_LOAD, &mut attr) }
}

/// The ids of the device programs that are attached to this very cgroup, and the flags that the first was
/// attached with.
pub(super) fn query(cgroup: BorrowedFd) -> Result<(Vec<u32>, u32), Errno> {
    let mut ids = vec![0u32; 64]; // BPF_CGROUP_MAX_PROGS
    let mut attr = Query {
        target_fd: number(cgroup),
        attach_type: ATTACH_TYPE,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: 64,
        padding: 0,
    };
    // SAFETY: `prog_ids` has room for `prog_cnt` numbers.
    unsafe { bpf(PROG_QUERY, &mut attr) }?;
    ids.truncate(attr.prog_cnt as usize);
    Ok((ids, attr.attach_flags))
}

/// A descriptor of a program. `ENOENT` when it is no more.
pub(super) fn by_id(id: u32) -> Result<OwnedFd, Errno> {
    let mut attr = GetFd { prog_id: id, next_id: 0, open_flags: 0 };
    // SAFETY: there is no address in it.
    unsafe { bpf_fd(PROG_GET_FD_BY_ID, &mut attr) }
}

/// The number that [`query`] knows a program by.
pub(super) fn id(program: BorrowedFd) -> Result<u32, Errno> {
    let mut info = Info::default();
    get_info(program, &mut info)?;
    Ok(info.id)
}

/// The instructions of a program as the verifier left them. `None` when the kernel keeps them to itself: with
/// `bpf_jit_harden=2` and without the right to see kernel addresses.
pub(super) fn instructions(program: BorrowedFd) -> Result<Option<Vec<Instruction>>, Errno> {
    let mut info = Info::default();
    get_info(program, &mut info)?;
    let mut code = vec![Instruction::default(); info.xlated_prog_len as usize / size_of::<Instruction>()];
    let mut info = Info {
        xlated_prog_len: info.xlated_prog_len,
        xlated_prog_insns: code.as_mut_ptr() as u64,
        ..Info::default()
    };
    get_info(program, &mut info)?;
    Ok((info.xlated_prog_insns != 0 && !code.is_empty()).then_some(code))
}

fn get_info(program: BorrowedFd, info: &mut Info) -> Result<(), Errno> {
    let mut attr = GetInfo {
        bpf_fd: number(program),
        info_len: size_of::<Info>() as u32,
        info: std::ptr::from_mut(info) as u64,
    };
    // SAFETY: `info` is `info_len` bytes; the one buffer that it can name is as long as it says, and zero
    // else.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(())
}

/// The program that a file of a BPF file system holds.
pub(super) fn pinned(file: &CStr) -> Result<OwnedFd, Errno> {
    let mut attr = Pin { pathname: file.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: `pathname` ends with NUL and is only read.
    unsafe { bpf_fd(OBJ_GET, &mut attr) }
}

/// Makes a file that holds a program. A name with a dot is refused by the kernel.
pub(super) fn pin(file: &CStr, program: BorrowedFd) -> Result<(), Errno> {
    let mut attr = Pin { pathname: file.as_ptr() as u64, bpf_fd: number(program), file_flags: 0 };
    // SAFETY: `pathname` ends with NUL and is only read.
    unsafe { bpf(OBJ_PIN, &mut attr) }?;
    Ok(())
}

/// Attaches a program to a cgroup; with [`REPLACE`] in the place of another.
pub(super) fn attach(
    cgroup: BorrowedFd,
    program: BorrowedFd,
    flags: u32,
    replaced: Option<BorrowedFd>,
) -> Result<(), Errno> {
    let mut attr = Attach {
        target_fd: number(cgroup),
        attach_bpf_fd: number(program),
        attach_type: ATTACH_TYPE,
        attach_flags: flags,
        replace_bpf_fd: replaced.map_or(0, number),
    };
    // SAFETY: there is no address in it.
    unsafe { bpf(PROG_ATTACH, &mut attr) }?;
    Ok(())
}

/// Detaches a program from a cgroup.
pub(super) fn detach(cgroup: BorrowedFd, program: &OwnedFd) -> Result<(), Errno> {
    let mut attr = Attach {
        target_fd: number(cgroup),
        attach_bpf_fd: number(program.as_fd()),
        attach_type: ATTACH_TYPE,
        attach_flags: 0,
        replace_bpf_fd: 0,
    };
    // SAFETY: there is no address in it.
    unsafe { bpf(PROG_DETACH, &mut attr) }?;
    Ok(())
}
