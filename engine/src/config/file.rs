//! The tables and keys of the file, and what they must be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fgpu_spec::{Compute, Policy};
use serde::Deserialize;

use super::{Config, Exceeded, Foreign, LogLevel, Slurm, WAIT_MAX};

impl Config {
    /// Parses the text of a configuration file. The error is one line: where, what, and what would be right.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        let defaults = Self::default();
        Ok(Self {
            policy: file.policy,
            units_per_gpu: match file.units_per_gpu {
                Some(0) => return Err("units-per-gpu must be at least 1".into()),
                units => units,
            },
            reserve_memory: match file.reserve_memory {
                None => 0,
                Some(text) => fgpu_spec::parse_memory(&text).map_err(|e| format!("reserve-memory: {e}"))?,
            },
            wait_default: match file.wait_default {
                None => Duration::ZERO,
                Some(text) => fgpu_spec::parse_wait(&text).map_err(|e| format!("wait-default: {e}"))?,
            },
            wait_max: match file.wait_max {
                None => WAIT_MAX,
                Some(text) => fgpu_spec::parse_wait(&text).map_err(|e| format!("wait-max: {e}"))?,
            },
            accept_env: file.accept_env,
            aliases: file
                .aliases
                .iter()
                .map(|word| word.parse().map_err(|reason| format!("aliases: {reason}")))
                .collect::<Result<_, String>>()?,
            allow_none: file.allow_none,
            state_dir: absolute("state-dir", file.state_dir)?.unwrap_or(defaults.state_dir),
            log_dir: absolute("log-dir", file.log_dir)?.unwrap_or(defaults.log_dir),
            log_level: file.log_level,
            library_dir: absolute("library-dir", file.library_dir)?.unwrap_or(defaults.library_dir),
            runtimes: match file.runtimes {
                None => defaults.runtimes,
                Some(list) if list.is_empty() => return Err("runtimes must name at least one".into()),
                Some(list) => list,
            },
            driver_root: absolute("[driver] root", file.driver.root)?.unwrap_or(defaults.driver_root),
            driver_extra: file
                .driver
                .extra
                .into_iter()
                .map(|path| absolute("[driver] extra", Some(path)).map(Option::unwrap_or_default))
                .collect::<Result<_, _>>()?,
            compute: file.quota.compute,
            foreign: file.placement.foreign,
            mig_use_existing: file.mig.use_existing,
            mig_keep: match file.mig.keep {
                None => Duration::ZERO,
                Some(text) => fgpu_spec::parse_wait(&text).map_err(|e| format!("[mig] keep: {e}"))?,
            },
            exceeded: file.exceeded.act,
            owner_max_gpus: file
                .owner
                .into_iter()
                .filter_map(|(name, owner)| Some((name, owner.max_gpus?)))
                .collect(),
            slurm: Slurm {
                shards_per_gpu: match file.slurm.shards_per_gpu {
                    Some(0) => return Err("[slurm] shards-per-gpu must be at least 1".into()),
                    shards => shards.unwrap_or(defaults.slurm.shards_per_gpu),
                },
                gpus: file
                    .slurm
                    .gpus
                    .into_iter()
                    .map(|path| absolute("[slurm] gpus", Some(path)).map(Option::unwrap_or_default))
                    .collect::<Result<_, _>>()?,
            },
        })
    }
}

fn absolute(key: &str, path: Option<PathBuf>) -> Result<Option<PathBuf>, String> {
    match path {
        Some(path) if !path.is_absolute() => {
            Err(format!("{key} = \"{}\" must be an absolute path", path.display()))
        }
        path => Ok(path),
    }
}

fn one_line(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count());
    let there = text.lines().nth(line).unwrap_or_default().trim().replace(char::is_control, "?");
    format!("line {}: {there}: {}", line + 1, error.message().replace('\n', " "))
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    policy: Policy,
    units_per_gpu: Option<u32>,
    reserve_memory: Option<String>,
    wait_default: Option<String>,
    wait_max: Option<String>,
    accept_env: bool,
    aliases: Vec<String>,
    allow_none: bool,
    state_dir: Option<PathBuf>,
    log_dir: Option<PathBuf>,
    log_level: LogLevel,
    library_dir: Option<PathBuf>,
    runtimes: Option<Vec<PathBuf>>,
    driver: Driver,
    placement: Placement,
    quota: Quota,
    mig: Mig,
    exceeded: ExceededTable,
    owner: BTreeMap<String, Owner>,
    slurm: SlurmTable,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct SlurmTable {
    shards_per_gpu: Option<u32>,
    gpus: Vec<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Driver {
    root: Option<PathBuf>,
    extra: Vec<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Placement {
    foreign: Foreign,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Quota {
    compute: Compute,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Mig {
    use_existing: bool,
    keep: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ExceededTable {
    act: Exceeded,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Owner {
    max_gpus: Option<u32>,
}
