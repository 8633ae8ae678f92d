//! Instructions as the kernel takes them: every program here is loaded and attached, and a process tries
//! devices.

use std::path::Path;

use nix::errno::Errno;

use super::super::bpf;
use super::super::tests::machine::{ACCESSES, DEVICES, Group, Tenant, Version, node, with};
use super::*;

const NEGATE: Instruction = Instruction::new(class::ALU64 | 0x80, 0, 0, 0, 0);
const RETURN: Instruction = Instruction::new(EXIT, 0, 0, 0, 0);

fn set(register: u8, number: i32) -> Instruction {
    Instruction::new(MOVE, register, 0, 0, number)
}

pub(in super::super) fn deny_all() -> Vec<Instruction> {
    vec![set(0, 0), RETURN]
}

pub(in super::super) fn allow_all() -> Vec<Instruction> {
    vec![set(0, 1), RETURN]
}

/// Denies everything, after it has called `bpf_get_current_uid_gid`.
pub(in super::super) fn calling() -> Vec<Instruction> {
    vec![Instruction::new(CALL, 0, 0, 0, 15), set(0, 0), RETURN]
}

/// A program as a runtime attached it; see testdata/README.md.
pub(in super::super) fn recorded(name: &str) -> Vec<Instruction> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/devices/program/testdata").join(name);
    std::fs::read_to_string(path).unwrap().lines().map(instruction).collect()
}

fn instruction(line: &str) -> Instruction {
    let bytes = u64::from_str_radix(line, 16).unwrap().to_be_bytes();
    let [code, registers, low, high, immediate @ ..] = bytes;
    Instruction {
        code,
        registers,
        offset: i16::from_le_bytes([low, high]),
        immediate: i32::from_le_bytes(immediate),
    }
}

/// One rule: kind, major, minor (`None`: any) and access bits.
struct Rule(u32, Option<u32>, Option<u32>, u32);

/// A list of rules in the manner of runc's programs, in 32-bit arithmetic; what no rule allows is denied.
fn rules(rules: &[Rule]) -> Vec<Instruction> {
    let alu = |code| class::ALU | code;
    let mut all = vec![
        Instruction::new(LOAD_WORD, 2, 1, 0, 0),
        Instruction::new(alu(0x50), 2, 0, 0, 0xffff),
        Instruction::new(LOAD_WORD, 3, 1, 0, 0),
        Instruction::new(alu(0x70), 3, 0, 0, 16),
        Instruction::new(LOAD_WORD, 4, 1, 4, 0),
        Instruction::new(LOAD_WORD, 5, 1, 8, 0),
    ];
    for Rule(kind, major, minor, access) in rules {
        let mut tests = vec![(2, *kind)];
        tests.extend(major.map(|major| (4, major)));
        tests.extend(minor.map(|minor| (5, minor)));
        // r6 = access & !allowed: must be nothing
        let end = tests.len() as i16 + 5;
        let skip = |at: usize| end - at as i16 - 1;
        let mut block: Vec<Instruction> = tests
            .iter()
            .enumerate()
            .map(|(at, (register, number))| {
                Instruction::new(class::JMP32 | 0x50, *register, 0, skip(at), number.cast_signed())
            })
            .collect();
        block.push(Instruction::new(alu(0xb0) | 0x08, 6, 3, 0, 0));
        block.push(Instruction::new(alu(0x50), 6, 0, 0, !access.cast_signed()));
        block.push(Instruction::new(JUMP_IF_NOT, 6, 0, skip(block.len()), 0));
        block.extend([set(0, 1), RETURN]);
        all.extend(block);
    }
    all.extend(deny_all());
    all
}

/// Whether the interpreter lets each access through, in the order of [`Tenant::all`].
fn interpreted(program: &[Instruction]) -> Vec<bool> {
    let bits = |access: &str| {
        access
            .chars()
            .map(|letter| match letter {
                'm' => 1,
                'r' => READ,
                _ => WRITE,
            })
            .sum::<u32>()
    };
    let questions = DEVICES.iter().flat_map(|device| ACCESSES.map(|access| (bits(access), *device)));
    questions
        .map(|(access, (kind, major, minor))| {
            let kind = if kind == 'c' { CHARACTER } else { 1 };
            interpret::run(program, [access << 16 | kind, major, minor]).unwrap() != 0
        })
        .collect()
}

/// What the kernel lets through.
fn tried(program: &[Instruction]) -> Vec<bool> {
    let mut tried = Vec::new();
    with(Version::V2, || {
        let group = Group::new(Version::V2);
        group.attach(program, bpf::ALLOW_MULTI);
        tried = Tenant::new(group.path()).all();
    });
    tried
}

/// Programs of every kind of rule.
fn table() -> Vec<(&'static str, Vec<Instruction>)> {
    let all = READ | WRITE | 1;
    vec![
        ("nothing", deny_all()),
        ("everything", allow_all()),
        ("runc", recorded("runc")),
        ("crun", recorded("crun")),
        ("systemd", recorded("systemd")),
        ("one device", rules(&[Rule(2, Some(240), Some(8), all)])),
        ("a major", rules(&[Rule(2, Some(240), None, READ)])),
        ("a minor", rules(&[Rule(2, None, Some(7), WRITE)])),
        ("block devices", rules(&[Rule(1, None, None, all)])),
        ("making nodes", rules(&[Rule(1, None, None, 1), Rule(2, None, None, 1)])),
        (
            "reading here, writing there",
            rules(&[Rule(2, Some(240), Some(7), READ), Rule(2, Some(240), None, WRITE)]),
        ),
    ]
}

#[test]
fn the_interpreter_says_what_the_kernel_does() {
    for (name, program) in table() {
        assert_eq!(interpreted(&program), tried(&program), "{name}");
    }
}

#[test]
fn reading_and_writing_the_devices_is_added_and_nothing_else() {
    let nodes = [node(240, 7), node(195, 255)];
    let questions: Vec<_> =
        DEVICES.iter().flat_map(|device| ACCESSES.map(|access| (access, *device))).collect();
    for (name, program) in table() {
        let (before, wider) = (interpreted(&program), allowing(&program, &nodes).unwrap());
        let after = tried(&wider);
        assert_eq!(interpreted(&wider), after, "{name}");
        for ((before, after), (access, device)) in before.into_iter().zip(after).zip(&questions) {
            let asked = *access != "m" && [('c', 240, 7), ('c', 195, 255)].contains(device);
            assert_eq!(after, before || asked, "{name}: {access} {device:?}");
        }
        assert_eq!(allows(&wider, &nodes), Some(true), "{name}");
    }
}

#[test]
fn an_access_must_be_allowed_by_every_rule() {
    let program = rules(&[Rule(2, Some(240), Some(7), READ | WRITE), Rule(2, Some(240), Some(8), READ)]);
    for (nodes, allowed) in [
        (vec![], true),
        (vec![node(240, 7)], true),
        (vec![node(240, 8)], false),
        (vec![node(240, 7), node(240, 8)], false),
    ] {
        assert_eq!(allows(&program, &nodes), Some(allowed), "{nodes:?}");
    }
    // Reading alone and writing alone, but not both at once.
    let apart = rules(&[Rule(2, Some(240), Some(7), READ), Rule(2, Some(240), Some(7), WRITE)]);
    assert_eq!(allows(&apart, &[node(240, 7)]), Some(false));
}

#[test]
fn the_verdict_of_an_unreadable_program_is_not_guessed() {
    let endless = vec![Instruction::new(class::JMP, 0, 0, -1, 0)];
    let off_the_end = vec![set(0, 1)];
    let unset = vec![RETURN];
    let address = vec![Instruction::new(MOVE | 0x08, 0, 1, 0, 0), RETURN];
    let stack = vec![Instruction::new(LOAD_WORD, 0, 10, -8, 0), RETURN];
    let beyond = vec![Instruction::new(LOAD_WORD, 0, 1, 12, 0), RETURN];
    for program in [endless, off_the_end, unset, address, stack, beyond, calling(), vec![NEGATE, RETURN]] {
        assert_eq!(allows(&program, &[node(240, 7)]), None, "{program:?}");
    }
}

#[test]
fn blinded_constants_are_loaded_again_through_another_register() {
    let (plain, blinded) = (recorded("systemd"), recorded("systemd-blinded"));
    assert_eq!(bpf::load(&blinded).unwrap_err(), Errno::EINVAL, "the kernel lets nobody name register 11");
    assert_eq!(interpreted(&blinded), interpreted(&plain));
    let nodes = [node(240, 7), node(195, 255)];
    assert_eq!(tried(&allowing(&blinded, &nodes).unwrap()), tried(&allowing(&plain, &nodes).unwrap()));

    let all: Vec<Instruction> = (0..10).map(|register| set(register, 0)).chain(blinded).collect();
    assert_eq!(allowing(&all, &nodes), Err(Unfit::Blinded), "no register is free");
}

/// A constant of zero is blinded without register 11.
#[test]
fn a_register_that_is_xored_with_itself_is_zero() {
    for code in [XOR, XOR_32] {
        let program = vec![Instruction::new(code, 0, 0, 0, 0), RETURN];
        assert_eq!(
            bpf::load(&program).unwrap_err(),
            Errno::EACCES,
            "to the verifier it is read before it is written"
        );
        assert_eq!(interpreted(&program), tried(&allowing(&program, &[]).unwrap()));
    }
}

#[test]
fn a_program_that_cannot_be_loaded_again_is_refused() {
    let map = Instruction::new(LOAD_CONSTANT, 1, 1, 0, 7);
    let rest = Instruction::default();
    let barrier = Instruction::new(class::ST | 0xc0, 0, 0, 0, 0);
    let tail_call = Instruction::new(class::JMP | 0xf0, 0, 0, 0, 0);
    for (program, reason) in [
        (calling(), Unfit::Call),
        (vec![map, rest, set(0, 0), RETURN], Unfit::Address),
        (vec![barrier, set(0, 0), RETURN], Unfit::Unknown(0xc2)),
        (vec![tail_call, RETURN], Unfit::Unknown(0xf5)),
        (vec![Instruction::new(class::STX | 0xc0 | 0x18, 10, 0, -8, 0), RETURN], Unfit::Unknown(0xdb)),
    ] {
        assert_eq!(allowing(&program, &[node(240, 7)]), Err(reason), "{program:?}");
    }
    assert_eq!(allowing(&deny_all(), &vec![node(240, 7); 9000]), Err(Unfit::TooLong));
    // A 64-bit constant is fine, its second half too.
    let constant = vec![Instruction::new(LOAD_CONSTANT, 0, 0, 0, 1), rest, RETURN];
    assert_eq!(interpreted(&constant), tried(&allowing(&constant, &[]).unwrap()));
}

proptest::proptest! {
    /// The kernel shows us only what its verifier took; we do not rely on it.
    #[test]
    fn no_program_can_harm_us(words in proptest::collection::vec(proptest::prelude::any::<(u8, u8, i16, i32)>(), 0..40)) {
        let program: Vec<Instruction> = words
            .into_iter()
            .map(|(code, registers, offset, immediate)| Instruction { code, registers, offset, immediate })
            .collect();
        let nodes = [node(240, 7)];
        let _ = allows(&program, &nodes);
        if let Ok(wider) = allowing(&program, &nodes) {
            proptest::prop_assert_eq!(allows(&wider, &nodes), Some(true));
        }
    }
}
