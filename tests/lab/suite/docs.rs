//! Every code block of the documentation runs: as an administrator would type it, on a machine that has only
//! the package and the simulated driver.
//!
//! What is missing in the lab stands in `inside/stand-ins`: systemd for the engines, device nodes on the
//! host.
//!
//! What a block is, its fence says: `sh` is run, line by line in a shell of its own, in a folder with the
//! package; `toml` is a configuration that fgpu takes; `yaml` is a Kubernetes manifest whose annotations fgpu
//! takes; `json` is JSON; `text` is not to be run (output, other machines). Anything else is a mistake.

use std::fs;

use fgpu_lab::command::{run, shell};
use fgpu_lab::inside::Test;
use fgpu_lab::markdown::{Block, PAGES, blocks};
use fgpu_lab::package::{current, install, restart_engines};
use fgpu_lab::{ctr, docker, podman};

pub(crate) const TESTS: &[Test] = &[Test::packaged("docs::every_block_runs", every_block_runs)];

/// Where blocks run.
const FOLDER: &str = "/root/docs";

/// The pages that set Docker up themselves. Each other page starts with what their commands leave.
const SET_DOCKER_UP: [&str; 2] = ["docs/install.md", "docs/quickstart.md"];

/// The command that makes Docker read daemon.json again, as the pages have it.
const RELOAD_DOCKER: &str = "/lab/stand-ins/systemctl reload docker";

fn every_block_runs() {
    let package = current();
    // The images that the pages use by the name `debian`.
    docker::load("debian13");
    ctr::load("default", "debian13");
    podman::load("debian13");
    shell(
        "docker tag debian13 debian && podman tag localhost/debian13 localhost/debian && \
         (ctr images tag docker.io/library/debian13:latest docker.io/library/debian:latest || true)",
    )
    .ok();
    fs::create_dir_all(FOLDER).expect("the root file system can be written");
    run(["cp", &package, FOLDER]).ok();

    let mut failures = Vec::new();
    for (name, page) in PAGES {
        let blocks = blocks(page).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        // Pages after the installation take it as done, and that somebody had a share before.
        let installed = install(&package);
        run(["/lab/stand-ins/fgpu", "run", "-p", "0.25", "--", "true"]).ok();
        if !SET_DOCKER_UP.contains(name) {
            shell(&format!("fgpu setup docker && {RELOAD_DOCKER}")).ok();
        }
        for block in blocks {
            if let Err(why) = check(&block) {
                failures.push(format!("{name}:{}: {why}", block.line));
            }
        }
        docker::remove_all();
        shell("podman rm --all --force --time 0 && ctr containers list --quiet").ok();
        for engine in ["docker", "containerd", "podman", "crio"] {
            run(["fgpu", "setup", engine, "--undo"]);
        }
        shell(RELOAD_DOCKER).ok();
        drop(installed);
    }
    restart_engines();
    run(["rm", "-rf", FOLDER]).ok();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn check(block: &Block) -> Result<(), String> {
    match block.language.as_str() {
        "text" => Ok(()),
        "sh" => {
            let script = format!("cd {FOLDER} && export PATH=/lab/stand-ins:$PATH && set -e\n{}", block.text);
            told(&run(["bash", "-c", &script]))
        }
        "toml" => {
            let path = "/run/lab/block.toml";
            fs::write(path, &block.text).map_err(|error| format!("{path}: {error}"))?;
            // An answer about the GPUs, whatever it is, is one about a configuration that was understood.
            let output = run(["fgpu", "--config", path, "explain", "fraction=0.25"]);
            if output.stderr.contains(path) { told(&output) } else { Ok(()) }
        }
        "yaml" => {
            let annotations = block.text.lines().filter_map(|line| {
                let (key, value) = line.trim().split_once(": ")?;
                Some(format!("{}={}", key.strip_prefix("fgpu/")?, value.trim_matches('"')))
            });
            let annotations: Vec<_> = annotations.collect();
            if annotations.is_empty() {
                return Ok(());
            }
            told(&run(["fgpu", "explain"].into_iter().map(str::to_owned).chain(annotations)))
        }
        "json" => serde_json::from_str::<serde_json::Value>(&block.text)
            .map(drop)
            .map_err(|error| error.to_string()),
        other => Err(format!("a block of language {other:?}; write sh, toml, yaml, json or text")),
    }
}

fn told(output: &fgpu_lab::command::Output) -> Result<(), String> {
    if output.status == 0 { Ok(()) } else { Err(output.story()) }
}
