//! Device programs as lists of instructions: what they let through, and how they are made to let more
//! through.
//!
//! A program gets a `struct bpf_cgroup_dev_ctx` in register 1 and leaves 1 (allowed) or 0 in register 0:
//!
//! ```text
//! 0  u32 access_type   access << 16 | type     access: 1 mknod, 2 read, 4 write; type: 1 block, 2 character
//! 4  u32 major
//! 8  u32 minor
//! ```
//!
//! The instructions that the kernel shows are what its verifier left. For what runc, crun and systemd attach,
//! which call nothing and use no map, that is what they wrote, less what can never be reached. Numbers: RFC
//! 9669.

use fgpu_spec::{DeviceNode, Majors};

mod interpret;

pub(super) use interpret::allows;

pub(super) const READ: u32 = 2;
pub(super) const WRITE: u32 = 4;
const CHARACTER: u32 = 2;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// Destination register in the low four bits, source register in the high ones.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

/// Instruction classes, the low three bits of a code.
mod class {
    pub(super) const LD: u8 = 0x00;
    pub(super) const LDX: u8 = 0x01;
    pub(super) const ST: u8 = 0x02;
    pub(super) const STX: u8 = 0x03;
    pub(super) const ALU: u8 = 0x04;
    pub(super) const JMP: u8 = 0x05;
    pub(super) const JMP32: u8 = 0x06;
    pub(super) const ALU64: u8 = 0x07;
}

const LOAD_WORD: u8 = class::LDX | 0x60;
const LOAD_CONSTANT: u8 = class::LD | 0x18;
const CALL: u8 = class::JMP | 0x80;
const EXIT: u8 = class::JMP | 0x90;
const MOVE: u8 = class::ALU64 | 0xb0;
const AND: u8 = class::ALU64 | 0x50;
const XOR: u8 = class::ALU64 | 0xa8;
const XOR_32: u8 = class::ALU | 0xa8;
const SHIFT_RIGHT: u8 = class::ALU64 | 0x70;
const JUMP_IF: u8 = class::JMP | 0x10;
const JUMP_IF_GREATER: u8 = class::JMP | 0x20;
const JUMP_IF_NOT: u8 = class::JMP | 0x50;
/// The last minor of a GPU; see [`Majors`].
const LAST_GPU: u32 = 253;

/// The register that the kernel's constant blinding uses and that no program may name.
const BLINDING: u8 = 11;

impl Instruction {
    const fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        Self { code, registers: source << 4 | destination, offset, immediate }
    }

    const fn class(self) -> u8 {
        self.code & 0x07
    }

    const fn destination(self) -> u8 {
        self.registers & 0x0f
    }

    const fn source(self) -> u8 {
        self.registers >> 4
    }

    /// Blinding writes a constant of zero as a register that is xored with itself; the verifier takes that
    /// for a read of what was never written.
    const fn is_zeroing(self) -> bool {
        let is_xor = matches!(self.code, XOR_32 | XOR);
        is_xor && self.destination() == self.source()
    }
}

/// Why a program cannot be loaded a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    /// The kernel does not say what the function's number was.
    #[error("it calls a function")]
    Call,
    /// What the kernel shows is the map's number and no descriptor.
    #[error("it uses a map or another address")]
    Address,
    /// The kernel's own instruction, or one from after RFC 9669.
    #[error("it has the instruction {0:#04x}, which is not known")]
    Unknown(u8),
    /// Constant blinding is in it, and no register is free to stand in for the kernel's.
    #[error("its constants are blinded (bpf_jit_harden) and it uses every register")]
    Blinded,
    /// A jump reaches 32767 instructions.
    #[error("there are too many devices for one program")]
    TooLong,
}

/// The program that allows what `program` does, and reading and writing these character devices.
///
/// Making a node (`mknod`) stays the old program's to decide: ours are made from outside.
///
/// # Errors
/// The old program, as the kernel shows it, cannot be loaded again.
pub(super) fn allowing(program: &[Instruction], nodes: &[DeviceNode]) -> Result<Vec<Instruction>, Unfit> {
    let mut all = prelude(nodes)?;
    all.extend(reloadable(program)?);
    Ok(all)
}

/// A program that forbids to open GPUs and capabilities which are not among these nodes, and allows all else.
/// Beside another one it takes from what that allows: all programs of a cgroup must allow.
///
/// # Errors
/// There are too many nodes.
pub(super) fn forbidding(majors: &Majors, nodes: &[DeviceNode]) -> Result<Vec<Instruction>, Unfit> {
    let mut all = prelude(nodes)?;
    // An access that comes here opens a character device that is none of the nodes, or makes one: r2 =
    // access, r3 = major, r4 = minor.
    all.extend([
        Instruction::new(LOAD_WORD, 2, 1, 0, 0),
        Instruction::new(MOVE | 0x08, 3, 2, 0, 0),
        Instruction::new(AND, 3, 0, 0, 0xffff),
        Instruction::new(SHIFT_RIGHT, 2, 0, 0, 16),
        Instruction::new(AND, 2, 0, 0, (READ | WRITE).cast_signed()),
    ]);
    let mut blocks = Vec::new();
    for major in majors.gpus() {
        blocks.push(vec![
            Instruction::new(JUMP_IF_NOT, 3, 0, 3, major.cast_signed()),
            Instruction::new(JUMP_IF_GREATER, 4, 0, 2, LAST_GPU.cast_signed()),
            Instruction::new(MOVE, 0, 0, 0, 0),
            Instruction::new(EXIT, 0, 0, 0, 0),
        ]);
    }
    for major in majors.capabilities() {
        blocks.push(vec![
            Instruction::new(JUMP_IF_NOT, 3, 0, 2, major.cast_signed()),
            Instruction::new(MOVE, 0, 0, 0, 0),
            Instruction::new(EXIT, 0, 0, 0, 0),
        ]);
    }
    let blocks = blocks.concat();
    // Past the numbers' loads and the blocks: not a character device, or nothing is opened.
    let over = |more: usize| i16::try_from(blocks.len() + more).map_err(|_| Unfit::TooLong);
    all.extend([
        Instruction::new(JUMP_IF_NOT, 3, 0, over(3)?, CHARACTER.cast_signed()),
        Instruction::new(JUMP_IF, 2, 0, over(2)?, 0),
        Instruction::new(LOAD_WORD, 3, 1, 4, 0),
        Instruction::new(LOAD_WORD, 4, 1, 8, 0),
    ]);
    all.extend(blocks);
    all.extend([Instruction::new(MOVE, 0, 0, 0, 1), Instruction::new(EXIT, 0, 0, 0, 0)]);
    Ok(all)
}

/// What goes before the old program. It keeps register 1, which the old program reads, and sets others, which
/// a program cannot read before it has set them itself.
fn prelude(nodes: &[DeviceNode]) -> Result<Vec<Instruction>, Unfit> {
    const PER_NODE: usize = 4;
    let over = |more: usize| i16::try_from(nodes.len() * PER_NODE + more).map_err(|_| Unfit::TooLong);
    let mut all = vec![
        // r2 = access_type; r3 = its type; not a character device: on to the old program
        Instruction::new(LOAD_WORD, 2, 1, 0, 0),
        Instruction::new(MOVE | 0x08, 3, 2, 0, 0),
        Instruction::new(AND, 3, 0, 0, 0xffff),
        Instruction::new(JUMP_IF_NOT, 3, 0, over(5)?, CHARACTER.cast_signed()),
        // r2 = the access less read and write; anything left: on to the old program
        Instruction::new(SHIFT_RIGHT, 2, 0, 0, 16),
        Instruction::new(AND, 2, 0, 0, !(READ | WRITE).cast_signed()),
        Instruction::new(JUMP_IF_NOT, 2, 0, over(2)?, 0),
        // r3 = major, r4 = minor
        Instruction::new(LOAD_WORD, 3, 1, 4, 0),
        Instruction::new(LOAD_WORD, 4, 1, 8, 0),
    ];
    for node in nodes {
        all.extend([
            Instruction::new(JUMP_IF_NOT, 3, 0, 3, node.major.cast_signed()),
            Instruction::new(JUMP_IF_NOT, 4, 0, 2, node.minor.cast_signed()),
            Instruction::new(MOVE, 0, 0, 0, 1),
            Instruction::new(EXIT, 0, 0, 0, 0),
        ]);
    }
    Ok(all)
}

/// The program as it can be loaded again.
fn reloadable(program: &[Instruction]) -> Result<Vec<Instruction>, Unfit> {
    let mut used = 0u16;
    let mut second_half = false;
    for instruction in program {
        if std::mem::take(&mut second_half) {
            continue; // of a 64-bit constant: its code is zero
        }
        match instruction.class() {
            class::LD if instruction.code == LOAD_CONSTANT => {
                if instruction.source() != 0 {
                    return Err(Unfit::Address);
                }
                second_half = true;
            }
            // 0x60 selects plain memory access; 0xc0, for ST, would be the kernel's own speculation barrier.
            class::LDX | class::ST | class::STX if instruction.code & 0xe0 == 0x60 => {}
            class::ALU | class::ALU64 if instruction.code & 0xf0 <= 0xd0 => {}
            class::JMP if instruction.code & 0xf0 == CALL & 0xf0 => return Err(Unfit::Call),
            class::JMP | class::JMP32 if instruction.code & 0xf0 <= 0xd0 => {}
            _ => return Err(Unfit::Unknown(instruction.code)),
        }
        used |= 1 << instruction.destination();
        // The source is a register only where the code says so; else it is zero, and register 0 is used
        // anyway.
        used |= 1 << instruction.source();
    }
    let mut program = match used & 1 << BLINDING {
        0 => program.to_vec(),
        _ => unblinded(program, used).ok_or(Unfit::Blinded)?,
    };
    for instruction in &mut program {
        if instruction.is_zeroing() {
            *instruction = Instruction::new(MOVE, instruction.destination(), 0, 0, 0);
        }
    }
    Ok(program)
}

/// With `bpf_jit_harden` the kernel replaces a constant by two that make it together in a register of its
/// own, which a program may not name. What is in that register is used by the next instruction and never
/// again, so another register that the program does not use does as well.
fn unblinded(program: &[Instruction], used: u16) -> Option<Vec<Instruction>> {
    let free = (6..=9).chain(2..=5).find(|register| used & 1 << register == 0)?;
    let rename = |register| if register == BLINDING { free } else { register };
    let renamed = program.iter().map(|instruction| Instruction {
        registers: rename(instruction.source()) << 4 | rename(instruction.destination()),
        ..*instruction
    });
    Some(renamed.collect())
}

#[cfg(test)]
pub(super) mod tests;
