//! A change of a file.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use fgpu_spec::{Code, Error};

use super::file::System;
use super::{diff, made};

/// A file as it is, and as it shall be. `None` is a file that is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// As the node sees it.
    pub(super) path: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
    /// What an undo may take out again besides, as the record of what was made has it.
    pub(super) member: Option<Member>,
}

/// A member of a file that was not there before, set or taken out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    Set(&'static str),
    Removed(&'static str),
}

impl Change {
    /// Whether the file stays as it is.
    pub(super) fn is_empty(&self) -> bool {
        self.before == self.after
    }

    /// As `diff -u` shows it.
    pub(super) fn diff(&self, system: &System) -> String {
        diff::unified(&system.shown(&self.path), self.before.as_deref(), self.after.as_deref())
    }

    /// Makes the change, all or nothing. Mode and owner stay, a link stays a link, new files are 0644.
    ///
    /// There is no copy of the file before: the diff was printed, and `--undo` takes out what was put in. A
    /// copy would also be read, by CRI-O for one, which takes every file of its directory whatever its name.
    ///
    /// # Errors
    /// `internal` if the file was changed since it was read, leads out of the root, or cannot be written.
    pub(super) fn apply(&self, system: &System) -> Result<(), Error> {
        let place = system.place(&self.path);
        if system.read(&self.path)? != self.before {
            return Err(Error::new(
                Code::Internal,
                format!("{} was changed meanwhile; run the command again", place.display()),
            ));
        }
        match &self.after {
            Some(text) => {
                let mut new = made::missing(system, &self.path);
                if let Some(Member::Set(member)) = self.member {
                    new.push(member.to_owned());
                }
                system.write(&self.path, text)?;
                made::add(system, new)?;
                match self.member {
                    Some(Member::Removed(member)) => made::remove(system, member),
                    _ => Ok(()),
                }
            }
            None => {
                remove(&place)?;
                made::sweep(system)
            }
        }
    }
}

fn remove(place: &Path) -> Result<(), Error> {
    match fs::remove_file(place) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", place, &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_changed_meanwhile_is_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let system = System::new(Some(root.path())).unwrap();
        let (before, after) = (Some("old".into()), Some("ours".into()));
        let change = Change { path: "/f".into(), before, after, ..Change::default() };
        for now in [Some("theirs"), None] {
            let place = system.place("/f");
            match now {
                Some(text) => fs::write(&place, text).unwrap(),
                None => fs::remove_file(&place).unwrap(),
            }
            assert!(change.apply(&system).unwrap_err().message.contains("was changed meanwhile"));
            assert_eq!(fs::read_to_string(&place).ok().as_deref(), now);
        }
        fs::write(system.place("/f"), "old").unwrap();
        change.apply(&system).unwrap();
        assert_eq!(system.read("/f").unwrap().as_deref(), Some("ours"));
    }
}
