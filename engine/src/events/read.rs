//! Reading the record, through any number of turns of its files.
//!
//! Files are opened from the newest to the oldest: one that is turned over meanwhile is found a second time
//! under its next name, and known by its inode, where the other way round it would be missed. A file stays
//! open until two newer ones are there, since a process that opened it before it was turned over may still
//! write to it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use super::file::{NAME, OLDER};

/// A line that is longer was not written by fgpu, bytes.
const LONGEST: usize = 1 << 16;

/// The record's lines, the oldest first.
#[derive(Debug)]
pub struct Lines {
    directory: PathBuf,
    /// The oldest first.
    files: VecDeque<Source>,
    /// Why a file that is there was not read.
    unread: Vec<(PathBuf, io::Error)>,
}

impl Lines {
    /// The record in a directory. That there is none yet is no error.
    ///
    /// # Errors
    /// The current file cannot be opened.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let mut lines = Self { directory: directory.to_owned(), files: VecDeque::new(), unread: Vec::new() };
        lines.look()?;
        Ok(lines)
    }

    /// The older files that could not be opened, and why.
    pub fn unread(&self) -> &[(PathBuf, io::Error)] {
        &self.unread
    }

    /// Gives every line that was written since the last call, without its end, to `each`. A last line that
    /// has no end yet stays for the next call.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.look()?;
        for file in &mut self.files {
            file.read(&mut each)?;
        }
        while self.files.len() > 2 {
            self.files.pop_front();
        }
        Ok(())
    }

    /// Opens the files that are not open yet.
    fn look(&mut self) -> io::Result<()> {
        let mut new: Vec<Source> = Vec::new();
        // Later on the older ones are not looked at again.
        let is_first = self.files.is_empty();
        if is_first {
            self.unread.clear();
        }
        for number in 0..=OLDER {
            let path = self.directory.join(name(number));
            match Source::open(&path) {
                // What is older than one that is open is open, or was read to its end.
                Ok(source) if self.files.iter().any(|known| known.is(&source)) => break,
                // Turned over a moment ago.
                Ok(source) if new.iter().any(|known| known.is(&source)) => {}
                Ok(source) => new.push(source),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if number == 0 => return Err(error),
                Err(error) if is_first => self.unread.push((path, error)),
                Err(_) => {}
            }
        }
        self.files.extend(new.into_iter().rev());
        Ok(())
    }
}

/// The name of a file, 0 being the current one.
fn name(number: u32) -> String {
    if number == 0 { NAME.to_owned() } else { format!("{NAME}.{number}") }
}

/// One of the files.
#[derive(Debug)]
struct Source {
    file: File,
    device: u64,
    inode: u64,
    /// What of a line has been read.
    rest: Vec<u8>,
    /// Whether that was too much, and the line is left out.
    long: bool,
}

impl Source {
    fn open(path: &Path) -> io::Result<Self> {
        // A pipe in its place is not waited for, and a link not followed: only the directory's own files are
        // the record.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
        }
        let (device, inode) = (metadata.dev(), metadata.ino());
        Ok(Self { file, device, inode, rest: Vec::new(), long: false })
    }

    fn is(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    fn read(&mut self, each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = vec![0; LONGEST];
        loop {
            let count = match self.file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let mut read = &buffer[..count];
            while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                self.rest.extend_from_slice(&read[..end]);
                if !std::mem::take(&mut self.long) && !self.rest.is_empty() {
                    each(&self.rest);
                }
                self.rest.clear();
                read = &read[end + 1..];
            }
            self.rest.extend_from_slice(read);
            if self.rest.len() > LONGEST {
                self.rest.clear();
                self.long = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    struct Record(tempfile::TempDir);

    impl Record {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, number: u32) -> PathBuf {
            self.0.path().join(name(number))
        }

        fn append(&self, number: u32, text: &str) {
            let mut file = File::options().create(true).append(true).open(self.path(number)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        /// As `file.rs` turns them over.
        fn turn_over(&self) {
            for number in (0..OLDER).rev() {
                let _ = fs::rename(self.path(number), self.path(number + 1));
            }
        }

        fn lines(&self) -> Lines {
            Lines::open(self.0.path()).unwrap()
        }
    }

    fn read(lines: &mut Lines) -> String {
        let mut all = Vec::new();
        lines.read(|line| all.push(String::from_utf8(line.to_vec()).unwrap())).unwrap();
        all.join(" ")
    }

    #[test]
    fn the_oldest_comes_first_and_nothing_twice() {
        let record = Record::new();
        assert_eq!(read(&mut record.lines()), "", "there is none yet");
        for (number, text) in [(3, "a\nb\n"), (1, "c\n"), (0, "d\n\ne\nhalf")] {
            record.append(number, text);
        }
        let mut lines = record.lines();
        assert_eq!(read(&mut lines), "a b c d e");
        assert_eq!(read(&mut lines), "");
        record.append(0, " line\nf\n");
        assert_eq!(read(&mut lines), "half line f");
    }

    #[test]
    fn files_are_turned_over_while_they_are_read() {
        let record = Record::new();
        record.append(0, "a\n");
        let mut lines = record.lines();
        // Before the first read, between two, and twice at once.
        record.turn_over();
        record.append(0, "b\n");
        assert_eq!(read(&mut lines), "a b");
        // A writer that had it open still writes to it.
        record.turn_over();
        record.append(1, "c\n");
        record.append(0, "d\n");
        record.append(1, "e\n");
        assert_eq!(read(&mut lines), "c e d");
        record.append(1, "f\n");
        assert_eq!(read(&mut lines), "f");
        record.append(0, "g\n");
        record.turn_over();
        record.append(0, "h\n");
        record.turn_over();
        record.append(0, "i\n");
        assert_eq!(read(&mut lines), "g h i");
        assert_eq!(read(&mut lines), "");
        assert!(lines.files.len() <= 2);
    }

    #[test]
    fn a_follower_sees_the_first_line() {
        let record = Record::new();
        let mut lines = record.lines();
        assert_eq!(read(&mut lines), "");
        record.append(0, "a\n");
        assert_eq!(read(&mut lines), "a");
    }

    #[test]
    fn other_files_in_the_records_folder_are_not_read() {
        let record = Record::new();
        record.append(0, "a\n");
        nix::unistd::mkfifo(&record.path(1), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", record.path(2)).unwrap();
        let mut lines = record.lines();
        assert_eq!(read(&mut lines), "a");
        assert_eq!(lines.unread().len(), 2, "{:?}", lines.unread());
        fs::remove_file(record.path(0)).unwrap();
        fs::create_dir(record.path(0)).unwrap();
        assert!(Lines::open(record.0.path()).is_err());
    }

    #[test]
    fn a_line_without_an_end_does_not_fill_the_memory() {
        let record = Record::new();
        record.append(0, &"x".repeat(5 * LONGEST));
        let mut lines = record.lines();
        assert_eq!(read(&mut lines), "");
        assert!(lines.files[0].rest.capacity() < 4 * LONGEST);
        record.append(0, "x\na\n");
        assert_eq!(read(&mut lines), "a");
    }
}
