//! The engines' programs, and what they say of themselves.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::file::System;
use crate::version::Version;

/// How long a program may take to say its version, and a daemon to answer: one that is slow on a busy node is
/// not to be restarted.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

impl System {
    /// Where a program of the node is, as we see it.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        let mut places = self.program_directories().into_iter().map(|folder| {
            let path = folder.join(name);
            self.place(&path.to_string_lossy())
        });
        places.find(|place| place.is_file())
    }

    /// The first line that a program of the node prints, if it is there and answers in time.
    pub(crate) fn say(&self, name: &str, arguments: &[&str]) -> Option<String> {
        let mut child = Command::new(self.find(name)?)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let start = Instant::now();
        while child.try_wait().ok()?.is_none() {
            if start.elapsed() > PATIENCE {
                // Its end is of no more interest.
                let _ = child.kill().and_then(|()| child.wait());
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut text = String::new();
        child.stdout?.read_to_string(&mut text).ok()?;
        text.lines().next().map(str::to_owned)
    }

    /// The version of Docker, if it is there and answers in time. It is asked once.
    pub(crate) fn docker_version(&self) -> Option<Version> {
        *self.docker.get_or_init(|| Version::find(&self.say("dockerd", &["--version"])?))
    }
}
