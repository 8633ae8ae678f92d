//! containerd's CRI: a runtime `fgpu` for Kubernetes, in a block at the end of `/etc/containerd/config.toml`.
//!
//! Not as a file of its own below `imports`: up to 1.7 containerd takes a plugin's whole section from the
//! last file that has one, and everything else that is configured for CRI would be lost (containerd issue
//! 5837).

use ::toml::{Table, Value};
use fgpu_spec::Error;

use super::change::Change;
use super::file::System;
use super::toml::{File, Found, strings, tables, with_block, without_block};
use super::{Plan, Wish};

const PATH: &str = "/etc/containerd/config.toml";
/// What is written where there is no file: both 1.x and 2.x read version 2.
const FRESH: &str = "# Written by `fgpu setup containerd`.\nversion = 2\n";
const DROP_INS: &str = "/etc/containerd/conf.d";
const NOTE: &str = "written by `fgpu setup containerd`, removed by `fgpu setup containerd --undo`";
/// The names of the CRI plugin's runtime part in version 2, and from version 3 on.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

/// What config.toml shall be.
///
/// # Errors
/// `internal` if the file cannot be read, is of version 1, has CRI switched off or a runtime `fgpu` that is
/// not ours.
pub(super) fn plan(system: &System, wish: Wish) -> Result<Plan, Error> {
    let before = system.read(PATH)?;
    let text = before.clone().unwrap_or_default();
    let ours = without_block(&text)
        .map_err(|line| system.wrong(PATH, line, "the block that begins here has no `# fgpu end`"))?;
    let (rest, block) = ours.map_or((text.clone(), None), |(rest, block)| (rest, Some(block)));
    let fresh = fresh(system)?;
    let mut warnings = Vec::new();
    let after = match wish {
        Wish::Undo if block.is_none() => {
            refuse_foreign(system, &text)?;
            before.clone()
        }
        Wish::Undo => Some(rest).filter(|rest| rest != FRESH && *rest != fresh),
        Wish::Do { runtime } => {
            let is_runtime = runtime
                || block
                    .is_some_and(|block| block.contains("BinaryName") && block.contains("/fgpu-runtime\""));
            let rest = if before.is_none() || rest.is_empty() { fresh } else { rest };
            warnings = super::missing(system, &["containerd-shim-fgpu-v2", "fgpu-runtime"]);
            match add(system, &rest, is_runtime, &mut warnings)? {
                Some(with) => Some(with),
                None => before.clone(),
            }
        }
    };
    Ok(Plan {
        changes: vec![Change { path: PATH.into(), before, after, ..Change::default() }],
        warnings,
        next: vec![
            "systemctl restart containerd   # containers go on running".into(),
            "kubectl create -f - <<<'{\"apiVersion\": \"node.k8s.io/v1\", \"kind\": \"RuntimeClass\", \"metadata\": \
             {\"name\": \"fgpu\"}, \"handler\": \"fgpu\"}'"
                .into(),
            "then a pod with `runtimeClassName: fgpu` and the annotation `fgpu/fraction: \"0.25\"`".into(),
            "(ctr and Docker need nothing of this: ctr run --runtime io.containerd.fgpu.v2 …)".into(),
        ],
    })
}

/// A new file, that still imports what containerd 2.2 and newer import when they have none.
fn fresh(system: &System) -> Result<String, Error> {
    let imports = match system.list(DROP_INS, ".toml")?.is_empty() {
        true => String::new(),
        false => format!("imports = [\"{DROP_INS}/*.toml\"]\n"),
    };
    Ok(format!("{FRESH}{imports}"))
}

/// The text with our block; `None` if it has such a runtime already, written by hand.
fn add(
    system: &System,
    text: &str,
    is_runtime: bool,
    warnings: &mut Vec<String>,
) -> Result<Option<String>, Error> {
    let file = File::parse(system, PATH, text)?;
    let plugin = plugin(system, &file)?;
    let runtimes = ["plugins", plugin, "containerd", "runtimes"];
    if let Some(found) = file.find(&[&runtimes[..], &["fgpu"]].concat()) {
        return match is_usable(&found) {
            true => Ok(None),
            false => Err(foreign(system, found.line)),
        };
    }
    let whole: Table = ::toml::from_str(text).unwrap_or_default();
    let stock = stock_runtime(&whole, plugin);
    if !stock.contains_key("options") {
        warnings.push(format!(
            "{} sets no options for the runtime runc, so fgpu gets none: where kubelet's cgroup driver is systemd, \
             both need `SystemdCgroup = true`",
            system.shown(PATH)
        ));
    }
    let real = stock.get("options").and_then(|options| options.get("BinaryName")?.as_str());
    if let Some(real) = real.filter(|real| is_runtime && !real.is_empty() && *real != "runc") {
        warnings.push(format!(
            "the node's runc is {real}: fgpu-runtime uses it with `runtimes = [\"{real}\"]` in /etc/fgpu/config.toml"
        ));
    }
    if let Some(found) = file.find(&["imports"])
        && strings(found.value).is_some_and(|files| !files.is_empty())
    {
        warnings.push(format!(
            "{}:{} imports other files: containerd before 2.0 takes the section of a plugin from the last file that \
             has one; see whether `containerd config dump` has the runtime fgpu",
            system.shown(PATH),
            found.line
        ));
    }
    let header = format!("plugins.\"{plugin}\".containerd.runtimes.fgpu");
    let block = tables(&header, &runtime(system, stock, is_runtime));
    let with = with_block(text, &block, NOTE);
    if File::parse(system, PATH, &with).is_err() {
        let line = file.find(&["plugins", plugin]).map_or(0, |found| found.line);
        let reason = format!(
            "no table can be added below {plugin:?}, which is written inline; write it with [headers]"
        );
        return Err(system.wrong(PATH, line, &reason));
    }
    Ok(Some(with))
}

/// The name of the CRI plugin in this version of the file.
fn plugin(system: &System, file: &File<'_>) -> Result<&'static str, Error> {
    if let Some(found) = file.find(&["disabled_plugins"])
        && let Some(names) = strings(found.value)
        && names.iter().any(|name| name == "cri" || PLUGINS.contains(&name.as_str()))
    {
        let reason = "the CRI plugin is switched off here, so Kubernetes does not use this containerd; ctr needs no \
                      setup, and for Docker there is `fgpu setup docker`";
        return Err(system.wrong(PATH, found.line, reason));
    }
    let version = file.find(&["version"]);
    let line = version.as_ref().map_or(0, |found| found.line);
    match version.and_then(|found| found.value.as_integer()?.as_str().parse::<u32>().ok()) {
        Some(2) => Ok(PLUGINS[0]),
        Some(3..) => Ok(PLUGINS[1]),
        _ => {
            let reason = "the file is of version 1 (`version = 2` is missing), which knows no annotations; \
                          `containerd config migrate` prints it in a newer one";
            Err(system.wrong(PATH, line, reason))
        }
    }
}

/// What is configured for runc, whose settings are those of the node: its cgroup driver, its base spec.
fn stock_runtime(whole: &Table, plugin: &str) -> Table {
    let runc = ["plugins", plugin, "containerd", "runtimes", "runc"]
        .iter()
        .try_fold(whole, |table, key| table.get(*key)?.as_table());
    match runc {
        Some(runc)
            if runc.get("runtime_type").is_none_or(|kind| kind.as_str() == Some("io.containerd.runc.v2")) =>
        {
            runc.clone()
        }
        _ => Table::new(),
    }
}

/// The runtime `fgpu`: runc's settings, with ours in front of it.
fn runtime(system: &System, stock: Table, is_runtime: bool) -> Table {
    let mut runtime = stock;
    runtime.remove("runtime_path");
    // CRI makes runc's own options only for this type; our shim hands them on.
    runtime.insert("runtime_type".into(), "io.containerd.runc.v2".into());
    match is_runtime {
        false => {
            runtime.insert("runtime_path".into(), system.program("containerd-shim-fgpu-v2").into());
        }
        true => {
            let options = runtime.entry("options").or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(options) = options {
                options.insert("BinaryName".into(), system.program("fgpu-runtime").into());
            }
        }
    }
    for key in ["pod_annotations", "container_annotations"] {
        let list = runtime.entry(key).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            for glob in ["fgpu/*", "*.fgpu/*"] {
                if !list.iter().any(|known| known.as_str() == Some(glob)) {
                    list.push(glob.into());
                }
            }
        }
    }
    runtime
}

/// Whether a runtime that was written by hand does what ours does.
fn is_usable(found: &Found<'_, '_>) -> bool {
    let value = found.value;
    let text = |value: Option<&::toml::Spanned<::toml::de::DeValue<'_>>>| {
        value.and_then(|value| value.get_ref().as_str()).unwrap_or_default().to_owned()
    };
    let binary = value.get("options").and_then(|options| options.get_ref().get("BinaryName"));
    let in_front = text(value.get("runtime_path")).ends_with("/containerd-shim-fgpu-v2")
        || text(binary).ends_with("fgpu-runtime")
        || text(value.get("runtime_type")) == "io.containerd.fgpu.v2";
    let annotations =
        value.get("pod_annotations").and_then(|list| strings(list.get_ref())).unwrap_or_default();
    in_front && annotations.iter().any(|glob| glob == "fgpu/*" || glob == "*")
}

fn foreign(system: &System, line: usize) -> Error {
    let reason = "there is a runtime fgpu that is not as `fgpu setup containerd` writes it; change or remove it by hand";
    system.wrong(PATH, line, reason)
}

/// Says that there is something to undo that only its author can.
fn refuse_foreign(system: &System, text: &str) -> Result<(), Error> {
    let file = File::parse(system, PATH, text)?;
    for plugin in PLUGINS {
        if let Some(found) = file.find(&["plugins", plugin, "containerd", "runtimes", "fgpu"]) {
            return Err(foreign(system, found.line));
        }
    }
    Ok(())
}
