//! The file: lines that are appended, by many processes at once, and turned over when there are many.
//!
//! ```text
//! events.jsonl         the current file; each line one write(2) to a descriptor with O_APPEND
//! events.jsonl.1 … .3  older ones, .1 the latest
//! .rotate              flock of the process that turns them over; mode 0600, so that no user can hold it
//! ```
//!
//! The kernel puts an append at the end of the file under the inode's lock, so lines of different processes
//! do not mix (POSIX, write: "no intervening file modification"). A process that still has the file open that
//! was turned over writes to `.1`: no line is lost. A line that was cut short by a full disk gets its end
//! from the next writer. It cannot be told from one that is being written this very moment, so there may be
//! an empty line.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// The current file.
pub(super) const NAME: &str = "events.jsonl";
/// Held while the files are turned over.
const LOCK: &str = ".rotate";
/// How many older files are kept.
pub(super) const OLDER: u32 = 3;
/// The size from which a file is turned over, bytes.
const LARGE: u64 = 16 << 20;

/// The files, in one directory.
#[derive(Debug)]
pub(super) struct Log {
    directory: PathBuf,
    /// [`LARGE`]; tests have less patience.
    large: u64,
}

impl Log {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), large: LARGE }
    }

    /// Appends `line`, which ends with a line feed.
    ///
    /// # Errors
    /// It could not be written, or not to its end.
    pub(super) fn append(&self, line: &str) -> io::Result<()> {
        let mut file = self.open()?;
        let mut size = file.metadata()?.len();
        if size + line.len() as u64 > self.large {
            file = self.turn_over(file)?;
            size = file.metadata()?.len();
        }
        // The files that can be turned over are bounded; one that cannot must be, too.
        if size > 2 * self.large {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = Vec::with_capacity(line.len() + 1);
        if size > 0 && is_cut_short(&file, size) {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(line.as_bytes());
        // Beyond this limit the kernel sends SIGXFSZ, which kills.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| size + bytes.len() as u64 > limit) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        match file.write(&bytes)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn open(&self) -> io::Result<File> {
        match open(&self.directory.join(NAME), 0o644) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mode = Mode::from_raw_mode(0o755);
                match rustix::fs::mkdir(&self.directory, mode) {
                    // The umask of the program that started us does not decide who may look.
                    Ok(()) => rustix::fs::chmod(&self.directory, mode)?,
                    // Another process was faster.
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                open(&self.directory.join(NAME), 0o644)
            }
            opened => opened,
        }
    }

    /// Makes the file an older one, unless another process does or did; returns the one to write to.
    fn turn_over(&self, full: File) -> io::Result<File> {
        let lock = open(&self.directory.join(LOCK), 0o600)?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(full);
        }
        let lock = Turning(lock);
        let current = self.directory.join(NAME);
        let is_ours = |there: std::fs::Metadata| full.metadata().is_ok_and(|ours| same(&ours, &there));
        if std::fs::symlink_metadata(&current).is_ok_and(is_ours) {
            let older = |number| self.directory.join(format!("{NAME}.{number}"));
            for number in (1..OLDER).rev() {
                // One that is not there leaves a gap, which is filled the next time.
                let _ = std::fs::rename(older(number), older(number + 1));
            }
            std::fs::rename(&current, older(1))?;
        }
        drop(lock);
        self.open()
    }
}

/// The lock of the process that turns the files over.
struct Turning(File);

impl Drop for Turning {
    fn drop(&mut self) {
        // A child that was forked meanwhile shares the open file: closing ours alone would leave it locked
        // until the child runs its program.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Opens a regular file to append to it, without waiting for anything.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::RDWR
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if metadata.len() == 0 {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    }
    Ok(file)
}

fn same(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn is_cut_short(file: &File, size: u64) -> bool {
    let mut last = [b'\n'];
    file.read_exact_at(&mut last, size - 1).is_ok() && last != *b"\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn log(large: u64) -> (tempfile::TempDir, Log) {
        let folder = tempfile::tempdir().unwrap();
        let log = Log { directory: folder.path().join("fgpu"), large };
        (folder, log)
    }

    /// The names and the sizes of the files.
    fn files(log: &Log) -> Vec<(String, u64)> {
        let entries = std::fs::read_dir(&log.directory).unwrap().map(Result::unwrap);
        let mut files: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn anybody_may_read_whatever_the_umask() {
        let (_folder, log) = log(LARGE);
        log.append("{}\n").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&log.directory), mode(&log.directory.join(NAME))), (0o755, 0o644));
    }

    #[test]
    fn the_record_is_bounded() {
        let (_folder, log) = log(1000);
        let line = format!("{}\n", "x".repeat(99));
        for _ in 0..1000 {
            log.append(&line).unwrap();
        }
        let expected = [(".rotate", 0), ("events.jsonl", 1000), ("events.jsonl.1", 1000)];
        let older = [("events.jsonl.2", 1000), ("events.jsonl.3", 1000)];
        let expected = expected.into_iter().chain(older).map(|(name, size)| (name.to_owned(), size));
        assert_eq!(files(&log), expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_file_that_cannot_be_turned_over_is_bounded_too() {
        let (_folder, log) = log(1000);
        log.append("{}\n").unwrap();
        let lock = File::create(log.directory.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let line = format!("{}\n", "x".repeat(99));
        let written = (0..1000).filter(|_| log.append(&line).is_ok()).count();
        assert_eq!(written, 20);
        assert_eq!(files(&log)[1], (NAME.to_owned(), 2003));
    }

    #[test]
    fn a_line_that_was_cut_short_spoils_no_other() {
        let (_folder, log) = log(LARGE);
        log.append("{\"first\":1}\n").unwrap();
        let path = log.directory.join(NAME);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..5]).unwrap();
        log.append("{\"second\":2}\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"fir\n{\"second\":2}\n");
    }

    /// Sixteen writers and a file that is turned over under them all the time: every line is there once and
    /// whole.
    #[test]
    fn lines_of_many_writers_are_whole_and_none_is_lost() {
        const EACH: usize = 60;
        let (_folder, log) = log(64 * 1024);
        let lines = |writer: usize| {
            (0..EACH).map(move |number| format!("{writer} {number} {}\n", "x".repeat(writer * 20)))
        };
        // It is refused while the writer that turns the file over is not let run and the others have filled
        // it twice.
        let write = |log: &Log, line: &str| {
            while let Err(error) = log.append(line) {
                assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            for writer in 0..16 {
                let log = &log;
                scope.spawn(move || lines(writer).for_each(|line| write(log, &line)));
            }
        });
        let text = |(name, _): (String, u64)| std::fs::read_to_string(log.directory.join(name)).unwrap();
        let all: String = files(&log).into_iter().map(text).collect();
        assert!(files(&log).len() > 2, "it was turned over");
        let found: Vec<&str> = all.split_inclusive('\n').collect();
        let found: Vec<&str> = found.into_iter().filter(|line| *line != "\n").collect();
        let distinct: BTreeSet<String> = found.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!((found.len(), distinct), (16 * EACH, (0..16).flat_map(lines).collect()));
    }
}
