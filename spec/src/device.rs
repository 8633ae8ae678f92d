//! Which character devices only a grant may give, and rules of a device cgroup that allow no others.
//!
//! A GPU's node is told by its number: `--device` and mknod(2) give a node any name. Its path counts besides,
//! where a spec lists it by a number that the driver does not have.
//!
//! | major | minor | |
//! |---|---|---|
//! | 195, and what `nvidia` has in `/proc/devices` | 0 to 253 | a GPU |
//! | the same | 254, 255 | nvidia-modeset, nvidiactl: no GPU |
//! | that of `nvidia-caps` | all | MIG instances, fabric management |
//! | that of `nvidia-uvm` | all | no GPU: memory of those that the process can open |
//!
//! A rule that allows a GPU besides others is replaced by rules for the others. A rule that forbids, put
//! behind it, would not do: runc refuses one "to punch a hole" into a wildcard, and the kernel's v1 lists
//! ignore it.

use std::fmt;
use std::path::PathBuf;

/// NVIDIA's registered character major.
const REGISTERED: u32 = 195;
const LAST_GPU: u32 = 253;
const OTHERS: [u32; 2] = [254, 255];

/// A device node to create and to allow in the device cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// Absolute path in the container.
    pub path: String,
    /// Where the host has it: below `/dev`, or below the `/dev` of a driver root.
    pub host: PathBuf,
    /// Major number, stat'ed live on the host.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner on the host.
    pub uid: u32,
    /// Group on the host.
    pub gid: u32,
}

/// The majors of the driver's character devices on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Majors {
    gpus: Vec<u32>,
    capabilities: Vec<u32>,
    others: Vec<u32>,
}

impl Default for Majors {
    fn default() -> Self {
        Self::new([], [], [])
    }
}

impl Majors {
    /// From what `/proc/devices` lists for the GPUs' driver, for `nvidia-caps`, and at all; 195 is always the
    /// GPUs'.
    pub fn new(
        gpus: impl IntoIterator<Item = u32>,
        capabilities: impl IntoIterator<Item = u32>,
        all: impl IntoIterator<Item = u32>,
    ) -> Self {
        let mut gpus: Vec<u32> = std::iter::once(REGISTERED).chain(gpus).collect();
        gpus.dedup();
        let capabilities: Vec<u32> = capabilities.into_iter().collect();
        let is_nvidias = |major: &u32| gpus.contains(major) || capabilities.contains(major);
        let mut others: Vec<u32> = all.into_iter().filter(|major| !is_nvidias(major)).collect();
        others.sort_unstable();
        others.dedup();
        Self { gpus, capabilities, others }
    }

    /// Whether this character device is a GPU or a capability.
    pub fn is_granted_only(&self, major: i64, minor: i64) -> bool {
        let of = |majors: &[u32]| majors.iter().any(|known| i64::from(*known) == major);
        of(&self.gpus) && (0..=i64::from(LAST_GPU)).contains(&minor) || of(&self.capabilities)
    }

    /// The majors of GPUs, of which minors up to 253 are GPUs.
    pub fn gpus(&self) -> &[u32] {
        &self.gpus
    }

    /// The majors of capabilities.
    pub fn capabilities(&self) -> &[u32] {
        &self.capabilities
    }
}

/// Whether a GPU or a MIG capability has this path.
pub fn is_granted_only_path(path: &str) -> bool {
    let numbered = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    path.starts_with("/dev/nvidia-caps/") || path.strip_prefix("/dev/nvidia").is_some_and(numbered)
}

/// What kind of device a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// `a`, or no word.
    All,
    /// `b`.
    Block,
    /// `c`, or `u`, which is the same.
    Character,
}

/// What a rule lets a process do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `m`
    pub make: bool,
}

impl Access {
    /// Everything.
    pub const ALL: Self = Self { read: true, write: true, make: true };

    /// Reads `rwm` or a part of it; other letters mean nothing.
    pub fn parse(text: &str) -> Self {
        Self { read: text.contains('r'), write: text.contains('w'), make: text.contains('m') }
    }

    fn opens(self) -> bool {
        self.read || self.write
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(self.read, "r"), (self.write, "w"), (self.make, "m")];
        letters.iter().filter(|(has, _)| *has).try_for_each(|(_, letter)| f.write_str(letter))
    }
}

/// A rule of a device cgroup that allows something. `Display` writes it as cgroup v1 and
/// `--device-cgroup-rule` do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRule {
    /// Of which devices.
    pub kind: DeviceKind,
    /// `None`: every major.
    pub major: Option<u32>,
    /// `None`: every minor.
    pub minor: Option<u32>,
    /// What it allows.
    pub access: Access,
}

impl DeviceRule {
    /// Whether it is about every device and every access.
    pub fn is_everything(&self) -> bool {
        self.kind == DeviceKind::All && self.access == Access::ALL
    }

    /// The rules that allow what this one does, less GPUs and capabilities that are not `granted`; `None` if
    /// it allows none.
    ///
    /// A rule for every major becomes one for each that a driver has now, and none for a driver that is
    /// loaded later: a rule for each number that there may be is more than the kernel's verifier takes of a
    /// device program.
    ///
    /// Making a node stays allowed where the rule is for every major: a node alone opens nothing, and engines
    /// allow it by default.
    pub fn narrowed(&self, majors: &Majors, granted: &[DeviceNode]) -> Option<Vec<Self>> {
        let fits = |pattern: Option<u32>, number: u32| pattern.is_none_or(|pattern| pattern == number);
        let gpu = majors.gpus.iter().any(|major| fits(self.major, *major))
            && self.minor.is_none_or(|minor| minor <= LAST_GPU);
        let capability = majors.capabilities.iter().any(|major| fits(self.major, *major));
        let is_a_granted =
            granted.iter().any(|node| (Some(node.major), Some(node.minor)) == (self.major, self.minor));
        if self.kind == DeviceKind::Block || !self.access.opens() || !(gpu || capability) || is_a_granted {
            return None;
        }
        let mut rules = Vec::new();
        if self.kind == DeviceKind::All {
            rules.push(Self { kind: DeviceKind::Block, ..*self });
        }
        let character = Self { kind: DeviceKind::Character, ..*self };
        let mut access = self.access;
        if self.major.is_none() && access.make {
            access.make = false;
            rules.push(Self { access: Access { read: false, write: false, make: true }, ..character });
        }
        let rule = |major, minor| Self { major: Some(major), minor, access, ..character };
        let every = || majors.gpus.iter().chain(&majors.others).copied().collect();
        for major in self.major.map_or_else(every, |major| vec![major]) {
            if majors.gpus.contains(&major) {
                rules.extend(
                    OTHERS
                        .iter()
                        .filter(|minor| fits(self.minor, **minor))
                        .map(|minor| rule(major, Some(*minor))),
                );
            } else if !majors.capabilities.contains(&major) {
                rules.push(rule(major, self.minor));
            }
        }
        Some(rules)
    }
}

impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::All => 'a',
            DeviceKind::Block => 'b',
            DeviceKind::Character => 'c',
        };
        let number = |number: Option<u32>| number.map_or_else(|| "*".into(), |number| number.to_string());
        write!(f, "{kind} {}:{} {}", number(self.major), number(self.minor), self.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> DeviceRule {
        let (kind, rest) = text.split_once(' ').unwrap();
        let (numbers, access) = rest.split_once(' ').unwrap();
        let (major, minor) = numbers.split_once(':').unwrap();
        let kind = match kind {
            "a" => DeviceKind::All,
            "b" => DeviceKind::Block,
            _ => DeviceKind::Character,
        };
        DeviceRule {
            kind,
            major: major.parse().ok(),
            minor: minor.parse().ok(),
            access: Access::parse(access),
        }
    }

    fn node(major: u32, minor: u32) -> DeviceNode {
        DeviceNode { path: "/dev/x".into(), host: "/dev/x".into(), major, minor, mode: 0o666, uid: 0, gid: 0 }
    }

    fn narrowed(text: &str) -> Option<Vec<String>> {
        let majors = Majors::new([195], [234], [1, 10, 195, 195, 234, 511]);
        let rules = rule(text).narrowed(&majors, &[node(195, 255), node(195, 1), node(234, 7)])?;
        Some(rules.iter().map(DeviceRule::to_string).collect())
    }

    #[test]
    fn rules_that_allow_no_other_gpu_stay() {
        for text in [
            "c 1:3 rwm",
            "c 195:1 rw",
            "c 195:255 rwm",
            "c 195:254 rw",
            "c 234:7 r",
            "c *:* m",
            "c 195:* m",
            "c 195:0 m",
            "c 511:* rw",
            "c *:254 rw",
            "b *:* rwm",
            "b 195:0 rwm",
            "a 10:229 rwm",
        ] {
            // With a capability's major a rule for any major is never harmless.
            if text != "c *:254 rw" {
                assert_eq!(narrowed(text), None, "{text}");
            }
        }
        assert_eq!(rule("c *:254 rw").narrowed(&Majors::default(), &[]), None);
    }

    #[test]
    fn rules_that_allow_another_gpu_are_narrowed() {
        for (text, expected) in [
            ("c 195:0 rwm", &[][..]),
            ("c 195:0 r", &[]),
            ("c 195:253 w", &[]),
            ("c 234:8 rw", &[]),
            ("c 234:* rwm", &[]),
            ("c 195:* rwm", &["c 195:254 rwm", "c 195:255 rwm"]),
            ("c 195:* r", &["c 195:254 r", "c 195:255 r"]),
            ("a 195:0 rwm", &["b 195:0 rwm"]),
            ("a 195:* rw", &["b 195:* rw", "c 195:254 rw", "c 195:255 rw"]),
        ] {
            assert_eq!(narrowed(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_wildcard_of_every_major_keeps_all_others() {
        for (text, head, opens) in [
            ("c *:* rwm", &["c *:* m"][..], "*"),
            ("c *:* rw", &[], "*"),
            ("c *:0 rw", &[], "0"),
            ("a *:* rwm", &["b *:* rwm", "c *:* m"], "*"),
        ] {
            let rules = narrowed(text).unwrap();
            assert_eq!(rules[..head.len()], *head);
            for major in [1, 10, 195, 234, 511] {
                let has = |minor: &str| rules.contains(&format!("c {major}:{minor} rw"));
                match major {
                    234 => assert!(!rules.iter().any(|rule| rule.contains("c 234:"))),
                    195 => assert!(!has("*") && !has("0") && has("254") == (opens == "*")),
                    _ => assert!(has(opens), "{text}: {major}"),
                }
            }
        }
    }

    #[test]
    fn numbers_and_paths_of_gpus() {
        let majors = Majors::new([195, 240], [234], []);
        for (major, minor, is) in [
            (195, 0, true),
            (195, 253, true),
            (195, 254, false),
            (195, 255, false),
            (195, 256, false),
            (195, -1, false),
            (240, 3, true),
            (234, 0, true),
            (234, 4095, true),
            (511, 0, false),
            (1, 3, false),
        ] {
            assert_eq!(majors.is_granted_only(major, minor), is, "{major}:{minor}");
        }
        for (path, is) in [
            ("/dev/nvidia0", true),
            ("/dev/nvidia12", true),
            ("/dev/nvidia-caps/nvidia-cap1", true),
            ("/dev/nvidia", false),
            ("/dev/nvidiactl", false),
            ("/dev/nvidia-uvm", false),
            ("/dev/nvidia0p", false),
        ] {
            assert_eq!(is_granted_only_path(path), is, "{path}");
        }
    }
}
