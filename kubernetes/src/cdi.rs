//! The CDI file of a claim: a device for each of its requests, which is the hook that joins a container to
//! the request's lease.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fgpu_spec::CLAIM_KIND;
use serde_json::json;

/// What the names of our files begin with.
const PREFIX: &str = "fgpu.dev-claim_";
/// What the name of a file ends with that is being written.
const UNFINISHED: &str = "new";
/// The whole environment of the hook.
const ENVIRONMENT: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The id by which the kubelet names the device of a request to the engine.
pub fn id(uid: &str, request: &str) -> String {
    format!("{CLAIM_KIND}={}", name(uid, request))
}

fn name(uid: &str, request: &str) -> String {
    format!("{uid}-{request}")
}

/// The file's text. It has no amount, no grant and no path of a state: all of that is in the lease.
fn text(uid: &str, requests: &[&str], hook: &Path) -> String {
    let device = |request: &&str| {
        let args = ["fgpu-hook", "createRuntime", "--claim", &format!("{uid}/{request}")];
        let hook = json!({"hookName": "createRuntime", "path": hook, "args": args, "env": [ENVIRONMENT]});
        json!({"name": name(uid, request), "containerEdits": {"hooks": [hook]}})
    };
    let devices: Vec<_> = requests.iter().map(device).collect();
    let file = json!({"cdiVersion": "0.5.0", "kind": CLAIM_KIND, "devices": devices});
    format!("{file:#}\n")
}

fn path(folder: &Path, uid: &str) -> PathBuf {
    folder.join(format!("{PREFIX}{uid}.json"))
}

/// Writes the file of a claim, which is whole at every instant.
///
/// # Errors
/// It cannot be written.
pub fn write(folder: &Path, uid: &str, requests: &[&str], hook: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let path = path(folder, uid);
    // Engines read what ends with .json or .yaml.
    let temporary = path.with_extension(UNFINISHED);
    let mut options = OpenOptions::new();
    let mut file: File = options.write(true).create(true).truncate(true).mode(0o644).open(&temporary)?;
    file.write_all(text(uid, requests, hook).as_bytes())?;
    fs::rename(temporary, path)
}

/// Removes what a process that was killed left unfinished.
///
/// # Errors
/// The folder cannot be read, or a file cannot be removed.
pub fn sweep(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(PREFIX) && path.extension().is_some_and(|end| end == UNFINISHED) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Removes the file of a claim, if it is there.
///
/// # Errors
/// It cannot be removed.
pub fn remove(folder: &Path, uid: &str) -> io::Result<()> {
    match fs::remove_file(path(folder, uid)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The uids of the claims that have a file.
///
/// # Errors
/// The folder cannot be read.
pub fn claims(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut uids = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let uid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(".json"));
        uids.extend(uid.map(str::to_owned));
    }
    Ok(uids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_one_hook_that_names_its_request() {
        let file: serde_json::Value =
            serde_json::from_str(&text("1f-2e", &["gpu", "other"], Path::new("/usr/bin/fgpu-hook"))).unwrap();
        assert_eq!(file["kind"], CLAIM_KIND);
        let device = &file["devices"][1];
        assert_eq!(id("1f-2e", "other"), format!("{CLAIM_KIND}={}", device["name"].as_str().unwrap()));
        let hooks = device["containerEdits"]["hooks"].as_array().unwrap();
        assert_eq!(hooks.len(), 1);
        assert_eq!(hooks[0]["args"], json!(["fgpu-hook", "createRuntime", "--claim", "1f-2e/other"]));
        assert_eq!(hooks[0]["timeout"], json!(null));
    }

    #[test]
    fn files_are_found_by_their_claims() {
        let folder = tempfile::tempdir().unwrap();
        let folder = &folder.path().join("cdi");
        assert_eq!(claims(folder).unwrap(), [""; 0]);
        for _ in 0..2 {
            write(folder, "1f-2e", &["gpu"], Path::new("/x")).unwrap();
        }
        fs::write(folder.join("fgpu.json"), "{}").unwrap();
        fs::write(folder.join("fgpu.dev-claim_3a.new"), "{").unwrap();
        assert_eq!(claims(folder).unwrap(), ["1f-2e"]);
        sweep(folder).unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
        for _ in 0..2 {
            remove(folder, "1f-2e").unwrap();
        }
        assert_eq!(claims(folder).unwrap(), [""; 0]);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    }
}
