//! Versions of programs.

use std::fmt;

/// The first Docker that knows `runtimeType` in daemon.json, and `--annotation`.
pub(crate) const DOCKER_WITH_SHIMS: Version = Version(24, 0, 0);
/// The first Docker that knows CDI devices, where daemon.json has `features.cdi`.
pub(crate) const DOCKER_WITH_CDI: Version = Version(25, 0, 0);
/// The first Docker that knows them unless daemon.json says otherwise.
pub(crate) const DOCKER_WITH_CDI_ON: Version = Version(28, 2, 0);

/// Up to three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Version {
    /// The first `NUMBER.NUMBER[.NUMBER]` of a line: `Docker version 26.1.5+dfsg1, build a72d7cd`.
    pub(crate) fn find(line: &str) -> Option<Self> {
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
