//! The boards of the node: for each GPU a small file system with the places of its containers
//! (`fgpu_wire::turns`).
//!
//! ```text
//! <state>/board/lock             flock of the process that takes a place; mode 0600
//! <state>/board/<minor>/         tmpfs that is exactly full
//!   <minor>-index                mode 0644: which grant has which place
//!   <minor>-0 … <minor>-63       mode 0666: the places; each is mounted writable into the containers of its grant alone
//! ```
//!
//! A container can write, cut, chmod and lock its own place. The file system is full from the beginning (no
//! block, no inode is free), so a place cannot grow and takes no extended attribute. What a container left is
//! put right when the next one takes the place.
//!
//! A place belongs to a grant as long as the grant's folder is there. Nothing is done when a lease ends: its
//! place is free from then on, and what it said last expires by itself.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_spec::{Error, Nonce};
use fgpu_wire::turns::{self, INDEX, PLACES, SIZE};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{FallocateFlags, Mode, fallocate, fchmod, fchown, ftruncate};

use crate::lock::lock;

/// How long another process may hold the lock before a container goes without a place: a hundred times as
/// long as a new board takes.
const PATIENCE: Duration = Duration::from_secs(1);

/// A grant's place on a GPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The board.
    pub(crate) board: PathBuf,
    /// Name of the place's file on it.
    pub(crate) name: String,
}

/// Takes a place for the grant on the board of each GPU with one of these minor numbers, and makes the boards
/// that are missing. The grant's folder must be there. A GPU whose board is full has none: the container
/// keeps its share there, and takes no turns.
///
/// # Errors
/// A board cannot be made.
pub(crate) fn take(state_dir: &Path, nonce: &Nonce, minors: &[u32]) -> Result<Vec<Place>, Error> {
    let boards = state_dir.join("board");
    folder(&boards).map_err(|error| Error::io("create", &boards, &error))?;
    let path = boards.join("lock");
    let Some(_lock) = lock(&path, PATIENCE).map_err(|error| Error::io("lock", &path, &error))? else {
        return Ok(Vec::new());
    };
    let lives = |nonce: &[u8; 16]| {
        state_dir.join("containers").join(Nonce(*nonce).to_string()).symlink_metadata().is_ok()
    };
    let mut places = Vec::new();
    for minor in minors {
        let board = boards.join(minor.to_string());
        let failed = |error: io::Error| Error::io("make the board", &board, &error);
        let index = open_index(&board, *minor).map_err(failed)?;
        if let Some(place) = seat(&board, &index, *minor, nonce, lives).map_err(failed)? {
            places.push(Place { board, name: name(*minor, place) });
        }
    }
    Ok(places)
}

fn name(minor: u32, place: usize) -> String {
    format!("{minor}-{place}")
}

fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Opens the index of a board, which is made if it is not there. The index is written last, so a process that
/// is killed on the way leaves a board that is made anew.
fn open_index(board: &Path, minor: u32) -> io::Result<File> {
    folder(board)?;
    let path = board.join(format!("{minor}-index"));
    if let Ok(file) = open(&path)
        && read(&file).is_some()
    {
        return Ok(file);
    }
    if is_mounted(board)? {
        umount2(board, MntFlags::MNT_DETACH)?;
    }
    // The root, the index and the places. Every user of a container looks into the root; users of the node
    // stop at the folder above.
    let options = format!("size={},nr_inodes={},mode=755,huge=never", (PLACES + 1) * SIZE, PLACES + 2);
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("fgpu"), board, Some("tmpfs"), flags, Some(options.as_str()))?;
    let make = |path: &Path, mode| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        fchmod(&file, Mode::from_raw_mode(mode))?;
        fallocate(&file, FallocateFlags::empty(), 0, SIZE as u64)?;
        Ok::<_, io::Error>(file)
    };
    for place in 0..PLACES {
        make(&board.join(name(minor, place)), 0o666)?;
    }
    let file = make(&path, 0o644)?;
    file.write_all_at(&turns::new_index(), 0)?;
    Ok(file)
}

fn is_mounted(folder: &Path) -> io::Result<bool> {
    let above = folder.parent().unwrap_or(folder);
    Ok(fs::metadata(folder)?.dev() != fs::metadata(above)?.dev())
}

/// No container may make us wait: it could hold a lease on its own place.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)
}

fn read(index: &File) -> Option<[u8; INDEX]> {
    let mut bytes = [0; INDEX];
    index.read_exact_at(&mut bytes, 0).ok()?;
    turns::grants(&bytes).is_some().then_some(bytes)
}

/// Takes the first free place, and frees those of the dead.
fn seat(
    board: &Path,
    index: &File,
    minor: u32,
    nonce: &Nonce,
    lives: impl Fn(&[u8; 16]) -> bool,
) -> io::Result<Option<usize>> {
    let bytes = read(index).ok_or(io::ErrorKind::InvalidData)?;
    let grants: Vec<[u8; 16]> = turns::grants(&bytes).into_iter().flatten().copied().collect();
    let mut taken = grants.iter().position(|grant| *grant == nonce.0);
    for (place, grant) in grants.iter().enumerate() {
        let was_free = *grant == [0; 16];
        if !was_free && (lives(grant) || *grant == nonce.0) {
            continue;
        }
        let path = board.join(name(minor, place));
        if taken.is_none()
            && renew(&path).or_else(|_| cut_others(board, minor).and_then(|()| renew(&path))).is_ok()
        {
            index.write_all_at(&nonce.0, turns::grant_at(place) as u64)?;
            taken = Some(place);
        } else if !was_free {
            index.write_all_at(&[0; 16], turns::grant_at(place) as u64)?;
        }
    }
    Ok(taken)
}

/// Gives a place its mode, owner and size back, and zeros for what its last container said.
fn renew(path: &Path) -> io::Result<()> {
    let file = open(path)?;
    fchmod(&file, Mode::from_raw_mode(0o666))?;
    fchown(&file, Some(rustix::fs::Uid::ROOT), Some(rustix::fs::Gid::ROOT))?;
    ftruncate(&file, SIZE as u64)?;
    fallocate(&file, FallocateFlags::empty(), 0, SIZE as u64)?;
    file.write_all_at(&[0; SIZE], 0)
}

/// Cuts places to their size: one that a container cut short left a block that another may have taken.
fn cut_others(board: &Path, minor: u32) -> io::Result<()> {
    for place in 0..PLACES {
        if let Ok(file) = open(&board.join(name(minor, place)))
            && file.metadata()?.blocks() > (SIZE / 512) as u64
        {
            ftruncate(&file, SIZE as u64)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    use nix::libc;
    use rustix::fs::{XattrFlags, fsetxattr, statvfs};

    use super::*;
    use crate::own::tests::{apart, lease};

    const MINOR: u32 = 3;

    fn nonce(number: u8) -> Nonce {
        Nonce([number; 16])
    }

    /// A grant with its folder.
    fn grant(state: &Path, number: u8) -> Nonce {
        fs::create_dir_all(state.join("containers").join(nonce(number).to_string())).unwrap();
        nonce(number)
    }

    fn take_one(state: &Path, number: u8) -> Option<PathBuf> {
        let places = take(state, &grant(state, number), &[MINOR]).unwrap();
        places.first().map(|place| place.board.join(&place.name))
    }

    fn end(state: &Path, number: u8) {
        fs::remove_dir(state.join("containers").join(nonce(number).to_string())).unwrap();
    }

    fn is_full(state: &Path) -> bool {
        let stat = statvfs(state.join("board/3")).unwrap();
        (stat.f_bfree, stat.f_ffree) == (0, 0)
    }

    #[test]
    fn each_grant_has_a_place_and_the_dead_have_none() {
        apart(|state| {
            let all: BTreeSet<_> = (0..64).map(|number| take_one(state, number + 1).unwrap()).collect();
            assert_eq!(all.len(), PLACES);
            assert_eq!(take_one(state, 100), None, "it is full");
            assert_eq!(take_one(state, 7), take_one(state, 7), "the same again");
            assert!(is_full(state));
            end(state, 8);
            assert_eq!(take_one(state, 101), Some(state.join("board/3/3-7")));
            let index = fs::read(state.join("board/3/3-index")).unwrap();
            let grants = |index: &[u8]| {
                turns::grants(index[..INDEX].try_into().unwrap())
                    .unwrap()
                    .map(|grant| grant[0])
                    .collect::<Vec<_>>()
            };
            assert_eq!(grants(&index)[6..9], [7, 101, 9]);
            // The next lease clears all dead places.
            (20..30).for_each(|number| end(state, number));
            take_one(state, 102).unwrap();
            let index = fs::read(state.join("board/3/3-index")).unwrap();
            assert_eq!(grants(&index)[18..30], [19, 102, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30]);
        });
    }

    #[test]
    fn concurrent_takers_get_different_places() {
        apart(|state| {
            // Threads that are started from here on are in this mount namespace.
            let places: BTreeSet<_> = std::thread::scope(|scope| {
                let takers: Vec<_> =
                    (1..9).map(|number| scope.spawn(move || take_one(state, number))).collect();
                takers.into_iter().map(|taker| taker.join().unwrap().unwrap()).collect()
            });
            assert_eq!(places.len(), 8);
            assert!(is_full(state), "one board was made");
        });
    }

    /// All that a container's root may do to its place.
    #[test]
    fn changes_by_a_container_to_its_place_are_undone() {
        apart(|state| {
            for number in 1..4 {
                take_one(state, number).unwrap();
            }
            let path = state.join("board/3/3-1");
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let grown = fallocate(&file, FallocateFlags::empty(), 0, 2 * SIZE as u64);
            assert_eq!(grown, Err(rustix::io::Errno::NOSPC));
            let attribute = fsetxattr(&file, c"user.more", b"x", XattrFlags::empty());
            assert!(attribute.is_err(), "{attribute:?}");
            // It cuts its place short, and another takes the block.
            file.set_len(0).unwrap();
            let greedy = File::options().write(true).open(state.join("board/3/3-2")).unwrap();
            fallocate(&greedy, FallocateFlags::empty(), 0, 2 * SIZE as u64).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
            std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
            end(state, 2);
            assert_eq!(take_one(state, 4), Some(path.clone()));
            let stat = path.metadata().unwrap();
            assert_eq!(
                (stat.mode() & 0o7777, stat.uid(), stat.gid(), stat.len()),
                (0o666, 0, 0, SIZE as u64)
            );
            assert!(is_full(state));
            drop(file);
            // One that no process may open now is not waited for.
            end(state, 4);
            let _held = lease(&path, libc::F_RDLCK);
            assert_eq!(take_one(state, 5), Some(state.join("board/3/3-3")));
        });
    }

    #[test]
    fn a_board_that_is_half_made_is_made_anew() {
        apart(|state| {
            take_one(state, 1).unwrap();
            File::options()
                .write(true)
                .open(state.join("board/3/3-index"))
                .unwrap()
                .write_all_at(&[0; 16], 0)
                .unwrap();
            assert_eq!(take_one(state, 2), Some(state.join("board/3/3-0")));
            assert!(is_full(state));
            let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            assert_eq!(mounts.matches("/board/3 ").count(), 1, "{mounts}");
        });
    }

    #[test]
    fn a_held_lock_costs_a_place_and_no_container() {
        apart(|state| {
            take_one(state, 1).unwrap();
            let held = lock(&state.join("board/lock"), PATIENCE).unwrap().unwrap();
            assert_eq!(take_one(state, 2), None);
            drop(held);
            assert!(take_one(state, 2).is_some());
        });
    }
}
