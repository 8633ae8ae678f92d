//! The files of a grant that several containers share.
//!
//! ```text
//! <state>/containers/<nonce>/turn   flock of the process that makes a container's plan
//! <state>/containers/<nonce>/made   empty; there since all other files are
//! <state>/containers/<nonce>/tasks  flock of the task of a job that makes a mount namespace
//! ```
//!
//! The first container's plan makes the files, the next ones find them. A process that is killed on the way
//! leaves no `made`: the next one makes the files anew.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::OWN;
use fgpu_spec::{Code, Error};
use nix::mount::{MntFlags, umount2};

use crate::lock::lock;

const TURN: &str = "turn";
/// The file of another turn, that of a job's tasks to make a mount namespace (`fgpu slurm task`).
pub const TASKS: &str = "tasks";
const MADE: &str = "made";

/// How long another container's plan may take: a thousand times as long as it does.
const PATIENCE: Duration = Duration::from_secs(10);

/// The turn to make or use the files. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Joint {
    folder: PathBuf,
    _lock: File,
}

impl Joint {
    /// Waits for the turn. `folder` is the grant's. What is half made there is removed.
    ///
    /// # Errors
    /// Another process keeps the turn, or the files cannot be removed.
    pub(crate) fn enter(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(TURN);
        let held = lock(&path, PATIENCE).map_err(|error| Error::io("lock", &path, &error))?;
        let Some(held) = held else {
            return Err(Error::new(
                Code::Internal,
                format!(
                    "another container of the same claim has kept {} for {PATIENCE:?}; try again",
                    path.display()
                ),
            ));
        };
        let joint = Self { folder: folder.to_owned(), _lock: held };
        if !joint.is_made() {
            joint.clear().map_err(|error| Error::io("clear", folder, &error))?;
        }
        Ok(joint)
    }

    /// Whether the files are there.
    pub(crate) fn is_made(&self) -> bool {
        self.folder.join(MADE).exists()
    }

    /// Says that the files are there, and ends the turn.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn made(self) -> Result<(), Error> {
        let path = self.folder.join(MADE);
        File::create(&path).map(drop).map_err(|error| Error::io("create", &path, &error))
    }

    fn clear(&self) -> io::Result<()> {
        // It may not be mounted.
        let _ = umount2(&self.folder.join(OWN), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                // A turn whose file is gone is nobody else's to wait for.
                false if [TURN, TASKS].iter().any(|turn| entry.file_name() == *turn) => {}
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }
}
