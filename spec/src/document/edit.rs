//! The edits of a plan, on the parts of a document that were taken apart.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use oci_spec::runtime;
use serde::Deserialize;

use super::devices;
use super::entry::{entries, json, part};
use crate::device::is_granted_only_path;
use crate::json::{Node, Object, list, quoted};
use crate::{Code, DeviceNode, Error, Hook, Mount, Plan, escape_for_display};

/// Mount options of a driver file. Never `noexec`, because a library that cannot be mapped executable does
/// not load. Neither `rbind` nor a propagation flag: nothing is mounted below a single file, and a flag is a
/// further mount(2) for each of them, in every container that starts.
const READ_ONLY: &[&str] = &["bind", "ro", "nosuid", "nodev"];
/// The administrator's extra paths may be directories with mounts of their own, of which nothing comes back.
const WRITABLE: &[&str] = &["rbind", "rw", "nosuid", "nodev", "rprivate"];
/// Limits and ledger, which are data. Their source is in /run, which most systems mount `noexec`: in a user
/// namespace that flag is locked, and runc before 1.2 does not take it over by itself.
const DATA_READ_ONLY: &[&str] = &["bind", "ro", "nosuid", "nodev", "noexec"];
/// The folder of the grant, on which the others are mounted: they must not appear on the host, where the
/// folder is.
const FOLDER: &[&str] = &["bind", "ro", "nosuid", "nodev", "noexec", "private"];
const DATA_WRITABLE: &[&str] = &["bind", "rw", "nosuid", "nodev", "noexec"];
/// Where the source's mount has the flags already. Any option more makes runc mount it twice, and `rw` is
/// one.
const INHERITED: &[&str] = &["bind"];
/// What runc and crun mount a device node with where they may not make one; the flags stay those of the
/// host's mount.
const DEVICE: &[&str] = &["bind"];

/// Applies the plan and says whether that changed anything.
pub(super) fn apply(tree: &mut Object, plan: &Plan) -> Result<bool, Error> {
    check(plan)?;
    refuse_shared(tree, plan)?;
    let mut changed = false;
    if !plan.annotations.is_empty() {
        let annotations = part(tree, "annotations")?;
        for (key, value) in &plan.annotations {
            changed |= annotations.set(key, Node::Raw(quoted(value)));
        }
    }
    // In a user namespace the runtime makes no device nodes: it mounts the host's node of the same path
    // instead, whatever numbers the entry has. A node that the host has elsewhere is mounted from there.
    let elsewhere = |node: &&DeviceNode| node.host != Path::new(&node.path);
    let mut bound: Vec<&DeviceNode> = plan.nodes.iter().filter(elsewhere).collect();
    if !bound.is_empty() && !has_user_namespace(tree)? {
        bound.clear();
    }
    changed |= devices::edit(tree, plan, &bound)?;
    changed |= mounts(tree, &plan.mounts, &bound)?;
    for (stage, hook) in hooks(plan) {
        changed |= add_hook(tree, stage, hook)?;
    }
    Ok(changed)
}

/// A namespace that the container gets or joins.
#[derive(Deserialize)]
struct Namespace<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
}

pub(super) fn has_user_namespace(tree: &Object) -> Result<bool, Error> {
    let namespaces = tree.object("linux").and_then(|linux| linux.get("namespaces"));
    let namespaces: Vec<(&str, Namespace<'_>)> = entries(namespaces, "linux.namespaces")?;
    Ok(namespaces.iter().any(|(_, namespace)| namespace.r#type == "user"))
}

/// The fields of a mount that tell whether a former edit of ours wrote it.
#[derive(Deserialize)]
struct Existing<'a> {
    #[serde(borrow)]
    destination: Cow<'a, str>,
    options: Option<Vec<String>>,
}

fn mounts(tree: &mut Object, mounts: &[Mount], devices: &[&DeviceNode]) -> Result<bool, Error> {
    if mounts.is_empty() && devices.is_empty() {
        return Ok(false);
    }
    let existing: Vec<(&str, Existing<'_>)> = entries(tree.get("mounts"), "mounts")?;
    let of_former_edit = |existing: &Existing<'_>| {
        let options = existing.options.as_deref().unwrap_or_default();
        let is_ours = mounts.iter().any(|mount| mount.destination == existing.destination);
        is_ours && has_options_of_ours(options)
            || options == INHERITED && is_data(&existing.destination)
            || options == DEVICE
                && (is_granted_only_path(&existing.destination)
                    || devices.iter().any(|device| device.path == existing.destination))
    };
    let mut now: Vec<Cow<'_, str>> = existing
        .iter()
        .filter(|(_, mount)| !of_former_edit(mount))
        .map(|(raw, _)| Cow::Borrowed(*raw))
        .collect();
    for mount in mounts {
        let options = match (is_data(&mount.destination), mount.writable) {
            (true, false) if mount.destination == fgpu_wire::FOLDER_PATH => FOLDER,
            _ if mount.inherits => INHERITED,
            (false, false) => READ_ONLY,
            (false, true) => WRITABLE,
            (true, false) => DATA_READ_ONLY,
            (true, true) => DATA_WRITABLE,
        };
        now.push(mount_entry(&mount.destination, &mount.source, options)?.into());
    }
    for device in devices {
        now.push(mount_entry(&device.path, &device.host, DEVICE)?.into());
    }
    let now = list(&now);
    Ok(tree.set("mounts", Node::Raw(now)))
}

/// What is mounted on a mount that shares its events with the host appears on the host, too: our libraries in
/// place of the host's own, or a container's folder in place of the node's state.
fn refuse_shared(tree: &Object, plan: &Plan) -> Result<(), Error> {
    let existing: Vec<(&str, Existing<'_>)> = entries(tree.get("mounts"), "mounts")?;
    let shared = |option: &String| matches!(option.as_str(), "shared" | "rshared");
    for (_, volume) in existing.iter().filter(|(_, mount)| mount.options.iter().flatten().any(shared)) {
        let above = usual(&volume.destination);
        let mut ours = plan.mounts.iter();
        if let Some(mount) = ours.find(|mount| usual(&mount.destination).starts_with(&above)) {
            return Err(Error::new(
                Code::Conflict,
                format!(
                    "the volume on {} shares its mounts with the host (shared, rshared, Bidirectional), so {} of this \
                     container would appear on the host; mount it private, slave or elsewhere",
                    escape_for_display(&volume.destination),
                    mount.destination
                ),
            ));
        }
    }
    Ok(())
}

/// A path as the usual links of a root have it: `/var/run` is `/run`, `/lib` is `/usr/lib`.
fn usual(path: &str) -> PathBuf {
    let path: PathBuf = Path::new("/").join(path).components().collect();
    for (link, target) in
        [("/var/run", "/run"), ("/lib64", "/usr/lib64"), ("/lib", "/usr/lib"), ("/bin", "/usr/bin")]
    {
        if let Ok(rest) = path.strip_prefix(link) {
            return Path::new(target).join(rest).components().collect();
        }
    }
    path
}

/// Whether a mount has the very options that one of ours has.
pub(super) fn has_options_of_ours(options: &[String]) -> bool {
    [READ_ONLY, WRITABLE, FOLDER, DATA_READ_ONLY, DATA_WRITABLE, INHERITED]
        .iter()
        .any(|ours| options == *ours)
}

fn is_data(destination: &str) -> bool {
    fgpu_wire::is_data(destination)
}

fn mount_entry(destination: &str, source: &Path, options: &[&str]) -> Result<String, Error> {
    let options = options.iter().map(|&option| option.to_owned()).collect();
    let mut mount = runtime::Mount::default();
    mount.set_destination(destination.into()).set_typ(Some("bind".to_owned()));
    json(mount.set_source(Some(source.to_owned())).set_options(Some(options)))
}

#[derive(Deserialize)]
struct ExistingHook<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
}

/// The hooks of a plan and the stages at which they run.
fn hooks(plan: &Plan) -> impl Iterator<Item = (&'static str, &Hook)> {
    let stages = [("createRuntime", &plan.create_runtime), ("poststop", &plan.poststop)];
    stages.into_iter().filter_map(|(stage, hook)| Some((stage, hook.as_ref()?)))
}

fn add_hook(tree: &mut Object, stage: &'static str, hook: &Hook) -> Result<bool, Error> {
    let hooks = tree.object("hooks");
    let existing: Vec<(&str, ExistingHook<'_>)> =
        entries(hooks.and_then(|hooks| hooks.get(stage)), &format!("hooks.{stage}"))?;
    let entry = json(hook)?;
    let mut now: Vec<&str> = Vec::with_capacity(existing.len() + 1);
    let mut written = false;
    for (raw, former) in &existing {
        if Path::new(former.path.as_ref()) != hook.path() {
            now.push(raw);
        } else if !std::mem::replace(&mut written, true) {
            now.push(&entry);
        }
    }
    if !written {
        now.push(&entry);
    }
    let now = list(&now);
    Ok(part(tree, "hooks")?.set(stage, Node::Raw(now)))
}

/// Refuses a plan that a runtime would misread. It is our own making: this is a check of us, not of a user.
fn check(plan: &Plan) -> Result<(), Error> {
    let broken =
        |what: String| Err(Error::new(Code::Internal, format!("the plan of edits is wrong: {what}")));
    for node in &plan.nodes {
        if !node.path.starts_with("/dev/") {
            return broken(format!("the device path {:?} is not below /dev", node.path));
        }
        if !node.host.is_absolute() {
            return broken(format!("the device {:?} is not an absolute path", node.host));
        }
    }
    for mount in &plan.mounts {
        if !mount.destination.starts_with('/') || !mount.source.is_absolute() {
            return broken(format!(
                "the mount of {:?} on {:?} is not absolute",
                mount.source, mount.destination
            ));
        }
    }
    for (_, hook) in hooks(plan) {
        let path = hook.path();
        if !path.is_absolute() {
            return broken(format!("the hook {path:?} is not an absolute path"));
        }
        // Without a list of its own a hook inherits an environment that is not ours, once the image's
        // (CVE-2025-23266).
        if [hook.env(), hook.args()].iter().any(|list| list.as_ref().is_none_or(Vec::is_empty)) {
            return broken(format!("the hook {path:?} has no environment or arguments"));
        }
    }
    Ok(())
}
