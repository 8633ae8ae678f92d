//! cgroup v1: lists of exceptions in `devices.allow`, `devices.deny` and `devices.list`
//! (Documentation/admin-guide/cgroup-v1/devices.rst).
//!
//! A cgroup's list is always a part of its parent's: what is allowed is allowed from the outermost own cgroup
//! inwards, and what a shared parent does not allow cannot be had.

use fgpu_spec::{Code, DeviceNode, Error};
use nix::errno::Errno;

use super::cgroup::{Branch, Cgroup};

/// A rule that was not there before.
#[derive(Debug)]
pub(super) struct Added {
    cgroup: Cgroup,
    rules: Vec<String>,
}

/// Allows the devices in the container's own cgroups. What was done is put into `done` as it is done, so that
/// it is known if a later step fails.
///
/// # Errors
/// A cgroup that is not the container's own forbids a device, or a list cannot be read or changed.
pub(super) fn allow(branch: Branch, nodes: &[DeviceNode], done: &mut Vec<Added>) -> Result<(), Error> {
    if branch.own.is_empty()
        && let Some(shared) = branch.shared.last()
    {
        let list = List::of(shared)?;
        return match nodes.iter().find(|node| !list.covers(node)) {
            Some(node) => Err(super::shared_forbids(shared, node)),
            None => Ok(()),
        };
    }
    for cgroup in branch.own {
        let list = List::of(&cgroup)?;
        done.push(Added { cgroup, rules: Vec::new() });
        let Some(added) = done.last_mut() else { continue };
        for node in nodes.iter().filter(|node| !list.covers(node)) {
            let rule = format!("c {}:{} rw", node.major, node.minor);
            added
                .cgroup
                .write("devices.allow", &rule)
                .map_err(|errno| refused(&added.cgroup, &rule, errno))?;
            let missing: String = "rw".chars().filter(|access| !list.has(node, *access)).collect();
            added.rules.push(format!("c {}:{} {missing}", node.major, node.minor));
        }
    }
    Ok(())
}

fn refused(cgroup: &Cgroup, rule: &str, errno: Errno) -> Error {
    let path = cgroup.path().display();
    let message = match errno {
        Errno::EPERM => format!(
            "cannot allow `{rule}` in the device cgroup {path}: a parent cgroup does not allow it, or the hook lacks \
             CAP_SYS_ADMIN"
        ),
        errno => format!("cannot allow `{rule}` in the device cgroup {path}: {errno}"),
    };
    Error::new(Code::Internal, message)
}

impl Added {
    /// Whether all was allowed already.
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Denies again what was added. A cgroup that is gone has nothing to deny.
    pub(super) fn undo(self) -> Result<(), Error> {
        for rule in self.rules {
            match self.cgroup.write("devices.deny", &rule) {
                Ok(()) | Err(Errno::ENODEV | Errno::ENOENT) => {}
                Err(errno) => {
                    let path = self.cgroup.path().display();
                    let message = format!("cannot take `{rule}` back in the device cgroup {path}: {errno}");
                    return Err(Error::new(Code::Internal, message));
                }
            }
        }
        Ok(())
    }
}

/// A parsed `devices.list`: lines of `TYPE MAJOR:MINOR ACCESS`.
struct List(Vec<Rule>);

struct Rule {
    /// `None`: any.
    major: Option<u32>,
    minor: Option<u32>,
    access: String,
}

impl List {
    fn of(cgroup: &Cgroup) -> Result<Self, Error> {
        let text = cgroup
            .read("devices.list")
            .map_err(|errno| Error::io("read", &cgroup.path().join("devices.list"), &errno.into()))?;
        Ok(Self::parse(&text))
    }

    /// Block devices are left out: they are never asked for.
    fn parse(text: &str) -> Self {
        let rule = |line: &str| {
            let (kind, rest) = line.split_once(' ')?;
            let (numbers, access) = rest.split_once(' ')?;
            let (major, minor) = numbers.split_once(':')?;
            let number = |word: &str| match word {
                "*" => Some(None),
                word => word.parse().ok().map(Some),
            };
            let rule = Rule { major: number(major)?, minor: number(minor)?, access: access.to_owned() };
            matches!(kind, "a" | "c").then_some(rule)
        };
        Self(text.lines().filter_map(rule).collect())
    }

    /// Whether one rule alone allows reading and writing; the kernel does not add rules up.
    fn covers(&self, node: &DeviceNode) -> bool {
        self.0.iter().any(|rule| {
            rule.major.is_none_or(|major| major == node.major)
                && rule.minor.is_none_or(|minor| minor == node.minor)
                && rule.access.contains('r')
                && rule.access.contains('w')
        })
    }

    /// Whether a rule for just this device has the access: what is allowed besides is merged into it.
    fn has(&self, node: &DeviceNode, access: char) -> bool {
        self.0.iter().any(|rule| {
            rule.major == Some(node.major) && rule.minor == Some(node.minor) && rule.access.contains(access)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(major: u32, minor: u32) -> DeviceNode {
        DeviceNode { path: "/dev/x".into(), host: "/dev/x".into(), major, minor, mode: 0o666, uid: 0, gid: 0 }
    }

    #[test]
    fn nodes_that_a_list_allows() {
        let list = List::parse("c 1:3 rwm\nc 195:* rw\nc 10:229 r\nc *:* m\nb 8:0 rwm\n");
        for (major, minor, covered) in
            [(1, 3, true), (1, 5, false), (195, 0, true), (195, 255, true), (10, 229, false), (8, 0, false)]
        {
            assert_eq!(list.covers(&node(major, minor)), covered, "{major}:{minor}");
        }
        assert!(list.has(&node(10, 229), 'r') && !list.has(&node(10, 229), 'w'));
        // What a wildcard allows is not the device's own rule, and denying the device does not touch it.
        assert!(!list.has(&node(195, 0), 'r'));
        assert!(List::parse("a *:* rwm\n").covers(&node(195, 0)));
        assert!(!List::parse("").covers(&node(195, 0)));
        assert!(!List::parse("c 195:0 r\nc 195:* w\n").covers(&node(195, 0)));
    }
}
