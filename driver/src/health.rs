//! What was last seen of the GPUs, on disk: `<state_dir>/health.json`. A process that creates a container
//! reads it and asks no driver.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fgpu_spec::{Code, Error, Health, Outsider};

use crate::cache::write;
use crate::procfs::boot_id;

/// The version of the file's format. A file of another version says nothing, and is made anew.
pub const FORMAT: u32 = 1;

/// The file's name in the state directory.
pub const FILE: &str = "health.json";

/// How old what was seen may be before the GPUs are looked at again.
const STALE: Duration = Duration::from_secs(10);

/// What was last seen in this boot, without the processes that have ended since: where none is left, nothing
/// is held. None if the GPUs were not looked at, or nothing that can be read was written.
pub fn read(state_dir: &Path) -> Option<Health> {
    let mut health: Health = serde_json::from_slice(&fs::read(state_dir.join(FILE)).ok()?).ok()?;
    if health.version != FORMAT || health.boot_id != boot_id().ok()? {
        return None;
    }
    for seen in health.gpus.iter_mut().filter(|seen| !seen.outsiders.is_empty()) {
        seen.outsiders.retain(lives);
        if seen.outsiders.is_empty() {
            seen.foreign = 0;
        }
    }
    Some(health)
}

/// Whether a process is still there. One that has its pid now has another name, most likely.
fn lives(outsider: &Outsider) -> bool {
    let name = fs::read_to_string(format!("/proc/{}/comm", outsider.pid));
    name.is_ok_and(|name| name.trim_end() == outsider.name)
}

/// Whether it is time to look again.
pub fn is_stale(state_dir: &Path) -> bool {
    let seen = || fs::metadata(state_dir.join(FILE)).ok()?.modified().ok();
    // A clock that was set back makes it stale.
    seen().is_none_or(|seen| SystemTime::now().duration_since(seen).map_or(true, |age| age >= STALE))
}

/// Writes down what was seen.
///
/// # Errors
/// `internal` with the path that cannot be written.
pub fn store(state_dir: &Path, health: &Health) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(health)
        .map_err(|error| Error::new(Code::Internal, format!("cannot encode what was seen: {error}")))?;
    write(state_dir, FILE, &text)
}

#[cfg(test)]
mod tests {
    use fgpu_spec::Seen;

    use super::*;

    #[test]
    fn observations_are_of_this_boot_and_format() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!((read(folder.path()), is_stale(folder.path())), (None, true));
        let seen = Seen { uuid: "GPU-0".into(), foreign: 7, ..Seen::default() };
        let health = Health { version: FORMAT, boot_id: boot_id().unwrap(), gpus: vec![seen] };
        store(folder.path(), &health).unwrap();
        assert_eq!((read(folder.path()), is_stale(folder.path())), (Some(health.clone()), false));
        for other in [
            Health { boot_id: "another".into(), ..health.clone() },
            Health { version: FORMAT + 1, ..health.clone() },
        ] {
            store(folder.path(), &other).unwrap();
            assert_eq!(read(folder.path()), None);
        }
        // A field of a later release.
        let text = serde_json::to_string(&health).unwrap().replacen('{', r#"{"newer":[1],"#, 1);
        fs::write(folder.path().join(FILE), text).unwrap();
        assert_eq!(read(folder.path()), Some(health));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(read(folder.path()), None);
    }
}
