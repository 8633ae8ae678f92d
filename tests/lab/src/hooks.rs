//! The files of packaging/hooks.d, where the package puts them.

use std::fs;
use std::path::PathBuf;

const FOLDER: &str = "/usr/share/containers/oci/hooks.d";
const FILES: [(&str, &str); 2] = [
    ("fgpu.json", include_str!("../../../packaging/hooks.d/fgpu.json")),
    ("fgpu-poststop.json", include_str!("../../../packaging/hooks.d/fgpu-poststop.json")),
];

/// They are there until this is dropped.
#[derive(Debug)]
pub struct Installed(());

/// Puts them there. Every Podman of the environment reads them from then on.
#[track_caller]
pub fn install() -> Installed {
    fs::create_dir_all(FOLDER).unwrap_or_else(|error| panic!("{FOLDER}: {error}"));
    for (name, text) in FILES {
        fs::write(place(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    Installed(())
}

impl Drop for Installed {
    fn drop(&mut self) {
        for (name, _) in FILES {
            // The next test's own check finds a file that stays: its containers would have a hook.
            let _ = fs::remove_file(place(name));
        }
    }
}

fn place(name: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(name)
}
