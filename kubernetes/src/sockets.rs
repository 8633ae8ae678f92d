//! The sockets of this process, by which the kubelet knows it.
//!
//! Each process has names of its own. The kubelet takes a socket that comes back under its former name for another
//! plugin, and knows none for a second or two; a pod that comes then waits for a minute. So a new process
//! registers beside what is left of the former one, and then removes that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tracing::warn;

use crate::names::DRIVER;
use crate::serve;

/// Where the kubelet finds this process.
#[derive(Debug)]
pub struct Sockets {
    /// For its calls.
    pub endpoint: PathBuf,
    /// Where it looks for plugins.
    pub registration: PathBuf,
}

impl Sockets {
    /// Those of the process with this id, in the plugin's own folder and in the kubelet's registry.
    pub fn new(plugin: &Path, registry: &Path, process: u32) -> Self {
        Self {
            endpoint: plugin.join(format!("dra-{process}.sock")),
            registration: registry.join(format!("{DRIVER}-{process}-reg.sock")),
        }
    }

    /// Makes both: the registration's last, since the kubelet calls as soon as it sees that.
    ///
    /// # Errors
    /// A folder or a socket cannot be made.
    pub fn open(&self) -> io::Result<[UnixListener; 2]> {
        self.endpoint.parent().map_or(Ok(()), serve::private)?;
        Ok([serve::listen(&self.endpoint)?, serve::listen(&self.registration)?])
    }

    /// Removes what former processes left. Called when the kubelet knows this one.
    pub fn remove_others(&self) {
        for (own, begin, end) in [(&self.endpoint, "dra", ".sock"), (&self.registration, DRIVER, "-reg.sock")]
        {
            for other in
                own.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten()
            {
                let name = other.file_name();
                let is_ours =
                    name.to_str().is_some_and(|name| name.starts_with(begin) && name.ends_with(end));
                if is_ours
                    && other.path() != *own
                    && let Err(error) = fs::remove_file(other.path())
                {
                    warn!("{} of a former process stays: {error}", other.path().display());
                }
            }
        }
    }

    /// Removes them: the kubelet forgets a plugin whose socket is gone.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.registration);
        let _ = fs::remove_file(&self.endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_new_process_removes_what_the_former_one_left() {
        let folder = tempfile::tempdir().unwrap();
        let (plugin, registry) = (folder.path().join("plugin"), folder.path().join("registry"));
        fs::create_dir(&registry).unwrap();
        fs::write(registry.join("other.example-reg.sock"), "").unwrap();
        let (first, second) = (Sockets::new(&plugin, &registry, 1), Sockets::new(&plugin, &registry, 2));
        first.open().unwrap();
        let _open = second.open().unwrap();
        assert!(first.registration.exists() && first.endpoint.exists(), "until the kubelet knows the second");
        second.remove_others();
        assert!(!first.registration.exists() && !first.endpoint.exists());
        assert!(second.registration.exists() && second.endpoint.exists());
        assert!(registry.join("other.example-reg.sock").exists());
        second.remove();
        assert_eq!(fs::read_dir(&registry).unwrap().count(), 1);
    }
}
