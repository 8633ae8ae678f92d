//! Runs a device program without the kernel, which has no way to ask one: `BPF_PROG_TEST_RUN` knows no device
//! programs.
//!
//! It is asked before anything is changed. A program that allows the devices already is left alone. The
//! program of a cgroup that is not the container's must not be changed; if it is the one that refuses, it can
//! be named.

use fgpu_spec::DeviceNode;

use super::{CHARACTER, Instruction, LOAD_CONSTANT, READ, WRITE, class};

/// More than the largest list of rules takes; a program that goes on longer has a loop.
const MOST_STEPS: usize = 1 << 16;

/// What a register holds.
#[derive(Debug, Clone, Copy)]
enum Value {
    Number(u64),
    /// The address of the context, plus this much.
    Context(u64),
}

/// Whether the program lets all of these devices be opened for reading, writing and both. `None` when it does
/// something that only the kernel could answer.
pub(in super::super) fn allows(program: &[Instruction], nodes: &[DeviceNode]) -> Option<bool> {
    let accesses = [READ, WRITE, READ | WRITE];
    let mut questions = nodes
        .iter()
        .flat_map(|node| accesses.map(|access| [access << 16 | CHARACTER, node.major, node.minor]));
    questions.try_fold(true, |all, context| Some(all && run(program, context)? != 0))
}

/// Register 0 when the program exits.
pub(super) fn run(program: &[Instruction], context: [u32; 3]) -> Option<u64> {
    let mut registers: [Option<Value>; 12] = [None; 12];
    registers[1] = Some(Value::Context(0));
    let mut at = 0usize;
    for _ in 0..MOST_STEPS {
        let instruction = *program.get(at)?;
        let code = instruction.code;
        at += 1;
        let number = |register: u8| match registers.get(usize::from(register)) {
            Some(Some(Value::Number(number))) => Some(*number),
            _ => None,
        };
        let operand = || match code & 0x08 {
            0 => Some(i64::from(instruction.immediate).cast_unsigned()),
            _ => number(instruction.source()),
        };
        let result = match instruction.class() {
            class::JMP if code == super::EXIT => return number(0),
            class::JMP | class::JMP32 => {
                if jumps(instruction, || number(instruction.destination()), operand)? {
                    at = at.checked_add_signed(isize::from(instruction.offset))?;
                }
                continue;
            }
            class::LD if code == LOAD_CONSTANT && instruction.source() == 0 => {
                let high = program.get(at)?.immediate.cast_unsigned();
                at += 1;
                Value::Number(u64::from(high) << 32 | u64::from(instruction.immediate.cast_unsigned()))
            }
            class::LDX => {
                let Some(Some(Value::Context(base))) = registers.get(usize::from(instruction.source()))
                else {
                    return None;
                };
                let from = base.checked_add_signed(i64::from(instruction.offset))?;
                Value::Number(load(code, &context, usize::try_from(from).ok()?)?)
            }
            // A copy is the only arithmetic on an address that runtimes do.
            class::ALU64 if code == super::MOVE | 0x08 && instruction.offset == 0 => {
                (*registers.get(usize::from(instruction.source()))?)?
            }
            class::ALU | class::ALU64 if instruction.is_zeroing() => Value::Number(0),
            class::ALU | class::ALU64 if instruction.offset == 0 => {
                let old = || number(instruction.destination());
                Value::Number(arithmetic(code, old, operand)?)
            }
            _ => return None,
        };
        *registers.get_mut(usize::from(instruction.destination()))? = Some(result);
    }
    None
}

/// Loads a word, half word or byte of the context; its fields are in the machine's byte order.
fn load(code: u8, context: &[u32; 3], from: usize) -> Option<u64> {
    let bytes = context.map(u32::to_ne_bytes);
    let bytes = bytes.as_flattened().get(from..)?;
    match code {
        super::LOAD_WORD => Some(u32::from_ne_bytes(*bytes.first_chunk()?).into()),
        0x69 => Some(u16::from_ne_bytes(*bytes.first_chunk()?).into()),
        0x71 => Some((*bytes.first()?).into()),
        _ => None,
    }
}

/// `old` and `operand` are asked for only where the operation reads them: a move does not read its
/// destination.
fn arithmetic(code: u8, old: impl Fn() -> Option<u64>, operand: impl Fn() -> Option<u64>) -> Option<u64> {
    let wide = code & 0x07 == class::ALU64;
    let cut = |value: u64| if wide { value } else { value & u64::from(u32::MAX) };
    let (width, operand) = (if wide { 63 } else { 31 }, || operand().map(cut));
    let old = || old().map(cut);
    let shift = || Some(operand()? & width);
    let value = match code & 0xf0 {
        0x00 => old()?.wrapping_add(operand()?),
        0x10 => old()?.wrapping_sub(operand()?),
        0x20 => old()?.wrapping_mul(operand()?),
        0x40 => old()? | operand()?,
        0x50 => old()? & operand()?,
        0x60 => old()? << shift()?,
        0x70 => old()? >> shift()?,
        0x80 => old()?.wrapping_neg(),
        0xa0 => old()? ^ operand()?,
        0xb0 => operand()?,
        0xc0 if wide => (old()?.cast_signed() >> shift()?).cast_unsigned(),
        0xc0 => ((old()? as u32).cast_signed() >> shift()?).cast_unsigned().into(),
        _ => return None,
    };
    Some(cut(value))
}

fn jumps(
    instruction: Instruction,
    left: impl Fn() -> Option<u64>,
    right: impl Fn() -> Option<u64>,
) -> Option<bool> {
    let wide = instruction.class() == class::JMP;
    // Signed comparisons see 32 bits sign-extended; unsigned ones see the same order either way.
    let cut = |value: u64| if wide { value } else { i64::from((value as u32).cast_signed()).cast_unsigned() };
    let both = || Some((cut(left()?), cut(right()?)));
    let signed = || both().map(|(left, right)| (left.cast_signed(), right.cast_signed()));
    Some(match instruction.code & 0xf0 {
        0x00 if wide => true,
        0x10 => both().map(|(left, right)| left == right)?,
        0x20 => both().map(|(left, right)| left > right)?,
        0x30 => both().map(|(left, right)| left >= right)?,
        0x40 => both().map(|(left, right)| left & right != 0)?,
        0x50 => both().map(|(left, right)| left != right)?,
        0x60 => signed().map(|(left, right)| left > right)?,
        0x70 => signed().map(|(left, right)| left >= right)?,
        0xa0 => both().map(|(left, right)| left < right)?,
        0xb0 => both().map(|(left, right)| left <= right)?,
        0xc0 => signed().map(|(left, right)| left < right)?,
        0xd0 => signed().map(|(left, right)| left <= right)?,
        _ => return None,
    })
}
