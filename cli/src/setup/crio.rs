//! CRI-O: hooks.d, and with `--runtime` a runtime handler.
//!
//! Nothing has to be done for annotations: CRI-O matches hooks against those of the pod and the container,
//! and puts them into the spec. `allowed_annotations` is for CRI-O's own; with a foreign one in it CRI-O does
//! not start.
//!
//! The handler has the settings of the node's default handler, with fgpu-runtime in the place of its runtime.
//! What a handler does not set is CRI-O's guess, and a guess may be fatal: conmon is looked for in PATH, and
//! CRI-O's own packages have it in /usr/libexec/crio. Without `allowed_annotations` a pod's user namespace is
//! silently left out.

use std::path::{Path, PathBuf};

use ::toml::{Table, Value};
use fgpu_engine::config::{self, Config};
use fgpu_spec::Error;

use super::file::System;
use super::hooks::{CRIO_DROP_IN, DropIns, Engine, PODMAN_DROP_IN};
use super::toml::{File, tables};

/// The table of handlers.
const HANDLERS: [&str; 3] = ["crio", "runtime", "runtimes"];
/// CRI-O's default handler since 1.31, and before.
const DEFAULTS: [&str; 2] = ["crun", "runc"];
/// What of the default handler names its runtime, or says how that is called.
const ITS_OWN: [&str; 7] = [
    "inherit_default_runtime",
    "platform_runtime_paths",
    "runtime_config_path",
    "runtime_path",
    "runtime_pull_image",
    "runtime_root",
    "runtime_type",
];

/// CRI-O, as crio.conf(5) and crio.conf.d(5) describe its files.
pub(super) const ENGINE: Engine = Engine {
    name: "crio",
    files: &["/etc/crio/crio.conf"],
    drop_ins: DropIns::Below("/etc/crio/crio.conf.d"),
    own: CRIO_DROP_IN,
    table: &["crio", "runtime"],
    runtime,
    other: PODMAN_DROP_IN,
    next: &[
        "systemctl restart crio         # containers go on running",
        "then a pod with the annotation `fgpu/fraction: \"0.25\"`",
    ],
};

/// Our handler, as TOML.
fn runtime(system: &System, program: &str, warnings: &mut Vec<String>) -> Result<String, Error> {
    let default = DefaultHandler::read(system)?;
    let mut handler = default.handler;
    match handler.get("runtime_type").and_then(Value::as_str).unwrap_or_default() {
        "" | "oci" => {
            let real = handler.get("runtime_path").and_then(Value::as_str).unwrap_or_default();
            warnings.extend(other_runtime(system, real)?);
        }
        kind => {
            warnings.push(format!(
                "CRI-O's default handler {} is of the type {kind}, whose settings are not for fgpu-runtime; none are taken over",
                default.name
            ));
            handler.clear();
        }
    }
    handler.retain(|key, _| !ITS_OWN.contains(&key));
    handler.insert("runtime_path".into(), program.into());
    handler.insert("runtime_root".into(), "/run/fgpu-runtime".into());
    Ok(tables("crio.runtime.runtimes.fgpu", &handler))
}

/// Says where fgpu-runtime would not go on to the runtime of the default handler.
fn other_runtime(system: &System, real: &str) -> Result<Option<String>, Error> {
    let runtimes = Config::load_from(&system.place(config::PATH))?.runtimes;
    let mut folders = system.program_directories();
    folders.extend(config::RUNTIME_FOLDERS.map(PathBuf::from));
    let found = runtimes.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = found.map(|path| path.display().to_string()).find(|path| system.has(path));
    Ok(found.filter(|found| !real.is_empty() && Path::new(found) != Path::new(real)).map(|found| {
        format!(
            "CRI-O's default runtime is {real}, fgpu-runtime uses {found}: to use the same, set `runtimes = [\"{real}\"]` in {}",
            config::PATH
        )
    }))
}

/// The handler of pods that name none.
struct DefaultHandler {
    name: String,
    handler: Table,
}

impl DefaultHandler {
    /// As CRI-O puts it together: a later file's table of a handler takes the place of an earlier one's,
    /// whole.
    fn read(system: &System) -> Result<Self, Error> {
        let (mut name, mut handlers) = (None, Table::new());
        for path in ENGINE.read_files(system)? {
            let Some(text) = system.read(&path)? else { continue };
            let file = File::parse(system, &path, &text)?;
            if let Some(found) = file.find(&[&HANDLERS[..], &["fgpu"]].concat()) {
                let reason = "there is a handler fgpu here that `fgpu setup crio` has not written; remove it";
                return Err(system.wrong(&path, found.line, reason));
            }
            let whole: Table = ::toml::from_str(&text).unwrap_or_default();
            let runtime = whole.get("crio").and_then(|crio| crio.get("runtime"));
            let default = runtime.and_then(|runtime| runtime.get("default_runtime")?.as_str());
            name = default.map(str::to_owned).or(name);
            if let Some(more) = runtime.and_then(|runtime| runtime.get("runtimes")?.as_table()) {
                handlers.extend(more.clone());
            }
        }
        let there = DEFAULTS.into_iter().find(|name| handlers.contains_key(*name));
        let name = name.filter(|name| name != "fgpu").unwrap_or_else(|| there.unwrap_or(DEFAULTS[0]).into());
        let handler = handlers.get(&name).and_then(Value::as_table).cloned().unwrap_or_default();
        Ok(Self { name, handler })
    }
}
