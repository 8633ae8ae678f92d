//! `linux.devices` and `linux.resources.devices`: the granted nodes, and no other GPU's.

use std::borrow::Cow;
use std::path::PathBuf;

use oci_spec::runtime::{LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType};
use serde::Deserialize;

use super::entry::{entries, json, part};
use crate::device::{Access, DeviceKind, DeviceRule, Majors, is_granted_only_path};
use crate::json::{Node, Object, list};
use crate::{DeviceNode, Error, Plan};

/// The fields of a device entry that matter here.
#[derive(Deserialize)]
struct Device<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    r#type: Option<Cow<'a, str>>,
    major: Option<i64>,
    minor: Option<i64>,
}

impl Device<'_> {
    /// Whether it is a GPU or a MIG capability. The name alone would not do: `--device` can give a node any
    /// name.
    fn is_granted_only(&self, majors: &Majors) -> bool {
        let by_number =
            self.major.zip(self.minor).is_some_and(|(major, minor)| majors.is_granted_only(major, minor));
        is_granted_only_path(&self.path) || matches!(self.r#type.as_deref(), Some("c" | "u")) && by_number
    }
}

/// A rule of the device cgroup. An absent major or minor means every one, as -1 does in older documents.
#[derive(Deserialize)]
struct Rule<'a> {
    #[serde(default)]
    allow: bool,
    #[serde(borrow)]
    r#type: Option<Cow<'a, str>>,
    major: Option<i64>,
    minor: Option<i64>,
    #[serde(borrow)]
    access: Option<Cow<'a, str>>,
}

impl Rule<'_> {
    /// What it is about; `None` for a kind of which cgroups know nothing, or a number that no device has.
    fn parse(&self) -> Option<DeviceRule> {
        let kind = match self.r#type.as_deref() {
            None | Some("" | "a") => DeviceKind::All,
            Some("b") => DeviceKind::Block,
            Some("c" | "u") => DeviceKind::Character,
            Some(_) => return None,
        };
        let number = |number: Option<i64>| match number {
            None => Ok(None),
            Some(number) if number < 0 => Ok(None),
            Some(number) => u32::try_from(number).map(Some),
        };
        // To be on the safe side: crun takes a rule without access for one of nothing, runc refuses it.
        let access = self.access.as_deref().map_or(Access::ALL, Access::parse);
        Some(DeviceRule { kind, major: number(self.major).ok()?, minor: number(self.minor).ok()?, access })
    }
}

/// Makes devices and rules what the plan says. `bound` are those of its nodes that come as mounts: they have
/// a rule and no entry.
pub(super) fn edit(tree: &mut Object, plan: &Plan, bound: &[&DeviceNode]) -> Result<bool, Error> {
    let nodes = &plan.nodes;
    let linux = tree.object("linux");
    let existing: Vec<(&str, Device<'_>)> =
        entries(linux.and_then(|linux| linux.get("devices")), "linux.devices")?;

    let mut entries_now: Vec<Cow<'_, str>> = Vec::with_capacity(existing.len() + nodes.len());
    let mut written: Vec<bool> = nodes.iter().map(|node| bound.contains(&node)).collect();
    // By their numbers, whatever these are: a node called as a GPU is need not have one's that this node's
    // driver has.
    let mut removed: Vec<(i64, i64)> = Vec::new();
    for (raw, device) in &existing {
        let numbers = || device.major.zip(device.minor);
        if let Some(index) = nodes.iter().position(|node| node.path == device.path) {
            removed.extend(numbers());
            if !std::mem::replace(&mut written[index], true) {
                entries_now.push(device_entry(&nodes[index])?.into());
            }
        } else if device.is_granted_only(&plan.majors) {
            removed.extend(numbers());
        } else {
            entries_now.push(Cow::Borrowed(*raw));
        }
    }
    for (index, node) in nodes.iter().enumerate() {
        if !written[index] && !nodes[..index].iter().any(|former| former.path == node.path) {
            entries_now.push(device_entry(node)?.into());
        }
    }
    removed.retain(|numbers| !nodes.iter().any(|node| is(node, *numbers)));
    if nodes.is_empty() && entries_now.len() == existing.len() {
        return Ok(false);
    }
    let entries_now = list(&entries_now);
    let rules_now = rules(linux, plan, &removed)?;

    let linux = part(tree, "linux")?;
    let mut changed = linux.set("devices", Node::Raw(entries_now));
    if let Some(rules_now) = rules_now {
        changed |= part(linux, "resources")?.set("devices", Node::Raw(rules_now));
    }
    Ok(changed)
}

/// The device cgroup's rules as they shall be, or `None` if they may stay absent.
fn rules(linux: Option<&Object>, plan: &Plan, removed: &[(i64, i64)]) -> Result<Option<String>, Error> {
    let existing = existing_rules(linux)?;
    let privileged = is_privileged(&existing);
    let mut rules_now: Vec<Cow<'_, str>> = Vec::with_capacity(existing.len() + plan.nodes.len() + 1);
    // Runtimes forbid what no rule allows; crun on cgroup v1 does it only where a rule says so.
    if !existing.iter().any(|(_, rule)| rule.parse().is_some_and(|rule| rule.is_everything())) {
        rules_now.push(r#"{"allow":false,"access":"rwm"}"#.into());
    }
    // Rules apply in their order: what an earlier one allowed, a later `allow: false` may have taken back.
    let mut allowed: Vec<(i64, i64)> = Vec::new();
    for (raw, rule) in &existing {
        if !rule.allow {
            allowed.clear();
            rules_now.push(Cow::Borrowed(*raw));
            continue;
        }
        let parsed = rule.parse();
        let narrowed = parsed.and_then(|parsed| parsed.narrowed(&plan.majors, &plan.nodes));
        if let Some(narrowed) = narrowed.filter(|_| !privileged) {
            for rule in narrowed {
                let rule = Cow::Owned(rule_entry(&rule)?);
                if !rules_now.contains(&rule) {
                    rules_now.push(rule);
                }
            }
            continue;
        }
        if rule.r#type.as_deref() == Some("c")
            && let Some(numbers) = rule.major.zip(rule.minor)
        {
            if removed.contains(&numbers) {
                continue;
            }
            if parsed.is_some_and(|rule| rule.access.read && rule.access.write) {
                allowed.push(numbers);
            }
        }
        rules_now.push(Cow::Borrowed(*raw));
    }
    for node in &plan.nodes {
        if allowed.iter().any(|numbers| is(node, *numbers)) {
            continue;
        }
        allowed.push((node.major.into(), node.minor.into()));
        // Without `m`: making nodes is the runtime's work, and docker's `c *:* m` covers it where allowed.
        let access = Access { read: true, write: true, make: false };
        let (major, minor) = (Some(node.major), Some(node.minor));
        rules_now.push(rule_entry(&DeviceRule { kind: DeviceKind::Character, major, minor, access })?.into());
    }
    Ok((!plan.nodes.is_empty() || !existing.is_empty()).then(|| list(&rules_now)))
}

/// See [`Document::ungranted_rule`](super::Document::ungranted_rule).
pub(super) fn ungranted_rule(tree: &Object, plan: &Plan) -> Result<Option<String>, Error> {
    let existing = existing_rules(tree.object("linux"))?;
    if is_privileged(&existing) {
        return Ok(None);
    }
    let rules = existing.iter().filter(|(_, rule)| rule.allow).filter_map(|(_, rule)| rule.parse());
    let beyond = rules.into_iter().find(|rule| rule.narrowed(&plan.majors, &plan.nodes).is_some());
    Ok(beyond.map(|rule| rule.to_string()))
}

fn existing_rules(linux: Option<&Object>) -> Result<Vec<(&str, Rule<'_>)>, Error> {
    let resources = linux.and_then(|linux| linux.object("resources"));
    entries(resources.and_then(|resources| resources.get("devices")), "linux.resources.devices")
}

/// Whether everything is allowed and never was forbidden, as every engine writes it for `--privileged`.
/// Without it they forbid everything first, and `--device-cgroup-rule` comes behind that.
fn is_privileged(rules: &[(&str, Rule<'_>)]) -> bool {
    let everything = |rule: &Rule<'_>| rule.parse().is_some_and(|parsed| parsed.is_everything());
    rules.iter().find(|(_, rule)| everything(rule)).is_some_and(|(_, rule)| rule.allow)
}

fn is(node: &DeviceNode, (major, minor): (i64, i64)) -> bool {
    i64::from(node.major) == major && i64::from(node.minor) == minor
}

fn device_entry(node: &DeviceNode) -> Result<String, Error> {
    let mut device = LinuxDevice::default();
    device.set_path(PathBuf::from(&node.path)).set_typ(LinuxDeviceType::C);
    device.set_major(node.major.into()).set_minor(node.minor.into());
    device.set_file_mode(Some(node.mode & 0o777)).set_uid(Some(node.uid)).set_gid(Some(node.gid));
    json(&device)
}

fn rule_entry(rule: &DeviceRule) -> Result<String, Error> {
    let kind = match rule.kind {
        DeviceKind::All => LinuxDeviceType::A,
        DeviceKind::Block => LinuxDeviceType::B,
        DeviceKind::Character => LinuxDeviceType::C,
    };
    let mut entry = LinuxDeviceCgroup::default();
    entry.set_allow(true).set_typ(Some(kind)).set_access(Some(rule.access.to_string()));
    json(entry.set_major(rule.major.map(i64::from)).set_minor(rule.minor.map(i64::from)))
}

#[cfg(test)]
mod tests;
