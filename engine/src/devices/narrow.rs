//! Takes from an existing container what its device rules allow of GPUs that were not granted.
//!
//! On v2 a program is put beside the runtime's: all must allow, so one that forbids is enough. On v1 each
//! rule of the container's list that allows too much is replaced by narrower ones; a list that allows
//! everything has none to replace.

use fgpu_spec::{Access, Code, DeviceKind, DeviceRule, Error, Plan};

use super::bpf;
use super::cgroup::{Branch, Cgroup, ProcessCgroups};
use super::program::forbidding;

/// Forbids the cgroup of a process the GPUs and capabilities that are not in the plan. `rule` is the one that
/// allows them, for the message.
///
/// The process is as in [`open`](super::open), which comes after this: what a wildcard allowed it has no
/// more.
///
/// # Errors
/// [`Code::Conflict`]: the rule cannot be taken back here.
pub fn narrow(pid: i32, plan: &Plan, rule: &str) -> Result<(), Error> {
    let refused = |why: String| {
        let message = format!(
            "the container's device rule `{rule}` lets it open GPUs that are not granted, and cannot be taken back: \
             {why}; remove it (`--device-cgroup-rule`, `--device`), or use --runtime=fgpu-runtime"
        );
        Error::new(Code::Conflict, message)
    };
    let place = ProcessCgroups::of(pid)?;
    let in_scope = place.scope().is_some();
    if let Some(branch) = &place.v1 {
        if in_scope {
            return Err(refused("systemd would set it again at the next daemon-reload".into()));
        }
        v1(own(branch).map_err(refused)?, plan).map_err(refused)?;
    }
    if let Some(branch) = &place.v2
        && (place.v1.is_none() || !branch.own.is_empty())
    {
        v2(own(branch).map_err(refused)?, plan).map_err(refused)?;
    }
    Ok(())
}

/// The innermost cgroup, if it is the container's own.
fn own(branch: &Branch) -> Result<&Cgroup, String> {
    branch.own.last().ok_or_else(|| {
        let shared = branch.shared.last().map(|cgroup| cgroup.path().display().to_string());
        format!("the cgroup {} is not the container's alone", shared.unwrap_or_default())
    })
}

fn v2(cgroup: &Cgroup, plan: &Plan) -> Result<(), String> {
    let failed = |errno: nix::errno::Errno| {
        format!("no device program can be added to the cgroup {}: {errno}", cgroup.path().display())
    };
    let code = forbidding(&plan.majors, &plan.nodes).map_err(|error| error.to_string())?;
    let program = super::v2::load(&code).map_err(failed)?;
    bpf::attach(cgroup.directory(), std::os::fd::AsFd::as_fd(&program), bpf::ALLOW_MULTI, None)
        .map_err(failed)
}

fn v1(cgroup: &Cgroup, plan: &Plan) -> Result<(), String> {
    let failed = |doing: &str, errno: nix::errno::Errno| {
        format!("{doing} in the device cgroup {}: {errno}", cgroup.path().display())
    };
    let list = cgroup.read("devices.list").map_err(|errno| failed("the rules cannot be read", errno))?;
    for line in list.lines() {
        let Some(rule) = parse(line) else { return Err(format!("its list has the line {line:?}")) };
        let Some(narrowed) = rule.narrowed(&plan.majors, &plan.nodes) else { continue };
        if rule.kind == DeviceKind::All {
            return Err("everything is allowed".into());
        }
        let write = |file: &str, rule: &DeviceRule| {
            cgroup
                .write(file, &rule.to_string())
                .map_err(|errno| failed(&format!("cannot write `{rule}`"), errno))
        };
        write("devices.deny", &rule)?;
        narrowed.iter().try_for_each(|rule| write("devices.allow", rule))?;
    }
    Ok(())
}

/// A line of `devices.list`: `c 195:* rw`.
fn parse(line: &str) -> Option<DeviceRule> {
    let mut words = line.split_ascii_whitespace();
    let kind = match words.next()? {
        "a" => DeviceKind::All,
        "b" => DeviceKind::Block,
        "c" => DeviceKind::Character,
        _ => return None,
    };
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |word: &str| match word {
        "*" => Some(None),
        word => word.parse().ok().map(Some),
    };
    let access = Access::parse(words.next()?);
    Some(DeviceRule { kind, major: number(major)?, minor: number(minor)?, access })
}
