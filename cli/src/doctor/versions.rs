//! Versions of programs.

use std::fmt;

use super::node::Node;

/// The first Docker that knows `runtimeType` in daemon.json, and `--annotation`.
pub(super) const FIRST_WITH_ANNOTATIONS: Version = Version(24, 0, 0);

/// Up to three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32, pub(super) u32);

impl Version {
    /// The first `NUMBER.NUMBER[.NUMBER]` of a line: `Docker version 26.1.5+dfsg1, build a72d7cd`.
    pub(super) fn find(line: &str) -> Option<Self> {
        line.split(|char: char| !char.is_ascii_digit() && char != '.').find_map(|word| {
            let mut numbers = word.split('.').map(str::parse::<u32>);
            match (numbers.next(), numbers.next(), numbers.next()) {
                (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => Some(Self(major, minor, patch)),
                (Some(Ok(major)), Some(Ok(minor)), _) => Some(Self(major, minor, 0)),
                _ => None,
            }
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Whether Docker is older than its `--annotation`.
pub(super) fn has_old_docker(node: &Node) -> bool {
    let version = node.version_line("dockerd").as_deref().and_then(Version::find);
    version.is_some_and(|version| version < FIRST_WITH_ANNOTATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_programs_print_them() {
        for (line, version) in [
            ("Docker version 26.1.5+dfsg1, build a72d7cd", Version(26, 1, 5)),
            ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6", Version(1, 7, 24)),
            ("containerd github.com/containerd/containerd/v2 2.1.9 ", Version(2, 1, 9)),
            ("runc version 1.1.15+ds1", Version(1, 1, 15)),
            ("crun version 1.21", Version(1, 21, 0)),
            ("podman version 5.4.2", Version(5, 4, 2)),
            ("crio version 1.37.0", Version(1, 37, 0)),
            ("6.18.0-2-amd64", Version(6, 18, 0)),
        ] {
            assert_eq!(Version::find(line), Some(version), "{line}");
        }
        assert_eq!(Version::find("v2"), None);
    }
}
