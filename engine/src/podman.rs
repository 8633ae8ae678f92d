//! Podman before 4.6 hands the annotations of an image on as a container's (podman#18542): the author of the
//! image would say how much a container gets, and whose share it is.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Podman's mark on its containers, which it sets last.
const MANAGER: (&str, &str) = ("io.container.manager", "libpod");
/// Where an engine is looked for: a hook has an environment of its own.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The first Podman that keeps the two apart.
const FIRST: (u32, u32) = (4, 6);

/// Whether these annotations may be an image's: the Podman of this node is too old, or does not say its
/// version. It is asked, which takes some 30 ms, only for a container of its own that has annotations for us.
pub(crate) fn may_be_of_an_image(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(MANAGER.0).is_some_and(|manager| manager == MANAGER.1)
        && annotations.keys().any(|key| key.starts_with("fgpu/"))
        && version().is_none_or(|version| version < FIRST)
}

fn version() -> Option<(u32, u32)> {
    let mut command = Command::new("podman");
    command.arg("--version").env_clear().env("PATH", PATH).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output();
    parse(&String::from_utf8(output.ok()?.stdout).ok()?)
}

/// `podman version 5.4.2`.
fn parse(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.trim().strip_prefix("podman version ")?.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse("podman version 5.4.2\n"), Some((5, 4)));
        assert_eq!(parse("podman version 4.10.0-dev\n"), Some((4, 10)));
        assert_eq!(parse("podman version 4.6\n"), Some((4, 6)));
        for line in ["", "podman", "podman version", "podman version x.y", "version 5.4"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn podman_is_not_asked_without_annotations_of_ours() {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert!(!may_be_of_an_image(&map(&[])));
        assert!(!may_be_of_an_image(&map(&[MANAGER])));
        assert!(!may_be_of_an_image(&map(&[("fgpu/compute", "share")])), "another engine's");
    }
}
