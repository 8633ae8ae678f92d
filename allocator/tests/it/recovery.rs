//! Damage to the allocator file, and full disks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fgpu_allocator::{Error, OWN, Process, Store};
use fgpu_spec::{Code, Nonce};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, Mode, mkfifoat};

use crate::node::{Node, applicant, folder, forked, key, reserve, status};

/// The damaged files that are kept.
fn kept(node: &Node) -> Vec<PathBuf> {
    let entries = fs::read_dir(node.path("state")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_str().unwrap().contains("allocations.json.corrupt-")).collect()
}

/// Flips a bit of the n-th line.
fn damage_line(node: &Node, line: usize) -> Vec<u8> {
    let mut bytes = fs::read(node.file()).unwrap();
    let starts: Vec<_> = (0..bytes.len()).filter(|&at| at == 0 || bytes[at - 1] == b'\n').collect();
    bytes[starts[line] + 50] ^= 1;
    fs::write(node.file(), &bytes).unwrap();
    bytes
}

#[test]
fn a_damaged_file_stops_everything_and_is_kept() {
    let node = Node::new();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    reserve(&node.store, 1, 250_000, &applicant("b", node.spawn())).unwrap();
    let bytes = damage_line(&node, 1);
    let nonce = lease.grant.nonce;
    for _ in 0..2 {
        let error = reserve(&node.store, 1, 250_000, &applicant("c", node.spawn())).unwrap_err();
        assert_eq!(error.code, Code::StateCorrupt);
        let kept = kept(&node);
        assert_eq!(kept.len(), 1, "one copy, however often it is met");
        assert_eq!(fs::read(&kept[0]).unwrap(), bytes);
        assert!(error.message.contains(kept[0].to_str().unwrap()), "{error}");
        assert!(error.message.contains("fgpu gc --rebuild"), "{error}");
        for error in [
            node.store.activate(&nonce, None, None).unwrap_err(),
            node.store.release(&nonce).unwrap_err(),
            node.store.release_key(&key("a")).unwrap_err(),
            node.store.leases().unwrap_err(),
            node.store.reconcile().unwrap_err(),
        ] {
            assert_eq!(fgpu_spec::Error::from(error).code, Code::StateCorrupt);
        }
        assert_eq!(fs::read(node.file()).unwrap(), bytes, "nothing may overwrite it");
    }
}

#[test]
fn a_rebuild_keeps_what_is_whole_and_lives() {
    let node = Node::new();
    let makers: Vec<_> = (0..3).map(|_| node.spawn()).collect();
    let mut leases = Vec::new();
    for (maker, id) in makers.iter().zip(["a", "b", "c"]) {
        leases.push(reserve(&node.store, 1, 250_000, &applicant(id, *maker)).unwrap());
        node.make_folder(&leases[leases.len() - 1]);
    }
    node.kill(makers[1]);
    // The third line is in this file only: the one before it does not have it yet.
    let bytes = damage_line(&node, 3);
    let Err(Error::Unaccounted { lost, .. }) = node.store.rebuild(false) else {
        panic!("it must not forget")
    };
    assert_eq!(lost, [leases[2].grant.nonce]);
    assert_eq!(fs::read(node.file()).unwrap(), bytes, "nothing may have changed");
    let rebuilt = node.store.rebuild(true).unwrap();
    assert_eq!(rebuilt.kept, [leases[0].clone()]);
    assert_eq!(rebuilt.freed, [leases[1].clone()]);
    assert_eq!((rebuilt.damaged, rebuilt.lost), (1, vec![leases[2].grant.nonce]));
    assert_eq!(fs::read(rebuilt.aside.unwrap()).unwrap(), bytes);
    assert_eq!(node.store.leases().unwrap(), [leases[0].clone()]);
    assert_eq!(node.folders(), [leases[0].grant.nonce.to_string()]);
    // The node works again, and the copy stays as it was.
    for id in ["d", "e"] {
        reserve(&node.store, 1, 250_000, &applicant(id, node.spawn())).unwrap();
    }
    assert_eq!(fs::read(&kept(&node)[0]).unwrap(), bytes);
}

#[test]
fn a_rebuild_finds_lost_lines_in_the_file_before() {
    let node = Node::new();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    node.make_folder(&lease);
    for damage in ["", "\0\0\0\0", "{\"version\":1,\"check\":\"0000000000000000\""] {
        let maker = node.spawn();
        reserve(&node.store, 1, 250_000, &applicant("b", maker)).unwrap();
        reserve(&node.store, 1, 250_000, &applicant("c", maker)).unwrap();
        node.kill(maker);
        fs::write(node.file(), damage).unwrap();
        let rebuilt = node.store.rebuild(false).unwrap();
        assert_eq!(rebuilt.kept, [lease.clone()]);
        assert_eq!(rebuilt.freed.len(), 1, "b was in it, c was not yet");
    }
}

#[test]
fn a_rebuild_does_not_trust_an_older_line_to_say_who_is_dead() {
    let node = Node::new();
    let maker = node.spawn();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", maker)).unwrap();
    node.make_folder(&lease);
    node.store.activate(&lease.grant.nonce, Some(node.spawn()), None).unwrap();
    node.kill(maker);
    // Only the line before the activation is left, and it does not know the init that lives.
    damage_line(&node, 1);
    let Err(Error::Unaccounted { lost, .. }) = node.store.rebuild(false) else {
        panic!("it must not free it")
    };
    assert_eq!(lost, [lease.grant.nonce]);
}

#[test]
fn a_missing_file_is_not_an_empty_one_while_containers_hold_grants() {
    let node = Node::new();
    let maker = node.spawn();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", maker)).unwrap();
    reserve(&node.store, 1, 250_000, &applicant("b", maker)).unwrap();
    node.make_folder(&lease);
    fs::remove_file(node.file()).unwrap();
    let error = reserve(&node.store, 1, 250_000, &applicant("c", maker)).unwrap_err();
    assert_eq!(error.code, Code::StateCorrupt);
    assert!(error.message.contains("is missing although containers hold grants"), "{error}");
    assert_eq!(node.store.rebuild(false).unwrap().kept, [lease]);
    node.store.leases().unwrap();
}

#[test]
fn a_rebuild_of_a_sound_file_is_a_reconcile() {
    let node = Node::new();
    let maker = node.spawn();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", maker)).unwrap();
    assert_eq!(node.store.rebuild(true).unwrap().kept, [lease.clone()]);
    node.kill(maker);
    let rebuilt = node.store.rebuild(true).unwrap();
    assert_eq!((rebuilt.kept, rebuilt.freed, rebuilt.aside), (vec![], vec![lease], None));
}

#[test]
fn lines_of_another_boot_are_not_salvaged() {
    let mut node = Node::new();
    let maker = node.spawn();
    reserve(&node.store, 1, 250_000, &applicant("a", maker)).unwrap();
    reserve(&node.store, 1, 250_000, &applicant("b", maker)).unwrap();
    damage_line(&node, 0);
    node.reboot(2);
    // The same pid and start time again: at boot that happens.
    let again = node.spawn_as(maker.pid, 0);
    assert!(again.start >= maker.start);
    let rebuilt = node.store.rebuild(false).unwrap();
    assert_eq!((rebuilt.kept, rebuilt.damaged), (vec![], 2));
}

#[test]
fn another_version_is_left_alone() {
    let node = Node::new();
    reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    let text = fs::read_to_string(node.file()).unwrap().replacen("{\"version\":1,", "{\"version\":2,", 1);
    fs::write(node.file(), &text).unwrap();
    for error in [node.store.leases().unwrap_err(), node.store.rebuild(true).unwrap_err()] {
        assert!(matches!(error, Error::Version { found: 2, known: 1, .. }), "{error}");
    }
    assert_eq!(
        reserve(&node.store, 1, 1, &applicant("b", node.spawn())).unwrap_err().code,
        Code::StateCorrupt
    );
    assert_eq!(fs::read_to_string(node.file()).unwrap(), text);
    assert_eq!(kept(&node), [] as [PathBuf; 0]);
}

/// Runs `test` in a child process with a tmpfs of `size` on a folder.
fn on_a_tmpfs(size: &str, test: impl FnOnce(&Path)) {
    let dir = folder();
    let child = forked(|| {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let options = format!("size={size}");
        mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        test(dir.path());
        0
    });
    assert_eq!(status(child), 0, "see above");
}

/// Reserves until it is full, then releases everything.
#[test]
fn on_a_full_disk_a_reserve_fails_cleanly_and_a_release_works() {
    on_a_tmpfs("64k", |dir| {
        let store = Store::open(dir).unwrap();
        let maker = Process::current().unwrap();
        let mut held = Vec::new();
        let error = loop {
            match reserve(&store, 1, 100, &applicant(&format!("{:064}", held.len()), maker)) {
                Ok(lease) => held.push(lease),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code, Code::Internal);
        assert!(error.message.contains("No space left"), "{error}");
        assert!(held.len() > 10);
        // What is not to be written is not there.
        assert_eq!(store.leases().unwrap(), held);
        for (left, lease) in (0..held.len()).rev().zip(&held) {
            assert_eq!(store.release(&lease.grant.nonce).unwrap().as_ref(), Some(lease));
            assert_eq!(store.leases().unwrap().len(), left);
        }
        reserve(&store, 1, 100, &applicant("again", maker)).unwrap();
    });
}

/// A lease's own mounts end with it, wherever they are seen.
#[test]
fn a_lease_takes_its_mounts_along() {
    on_a_tmpfs("4m", |dir| {
        let store = Store::open(dir).unwrap();
        let lease = reserve(&store, 1, 100, &applicant("a", Process::current().unwrap())).unwrap();
        let own = store.container_dir(&lease.grant.nonce).join(OWN);
        let before = mounts();
        fs::create_dir_all(&own).unwrap();
        mount(Some("own"), &own, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        fs::create_dir(own.join("inner")).unwrap();
        mount(Some("inner"), &own.join("inner"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let held = File::create(own.join("ledger")).unwrap();
        assert_eq!(mounts(), before + 2);
        // As a unit of systemd sees it: what it unmounts is unmounted for itself alone.
        let elsewhere = || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
                .unwrap();
            assert!(store.release(&lease.grant.nonce).unwrap().is_some());
        };
        std::thread::scope(|scope| scope.spawn(elsewhere).join().unwrap());
        assert_eq!(mounts(), before);
        assert!(!own.parent().unwrap().exists());
        drop(held);
    });
}

/// How many mounts this thread sees.
fn mounts() -> usize {
    fs::read_to_string("/proc/thread-self/mountinfo").unwrap().lines().count()
}

#[test]
fn a_fifo_in_the_place_of_the_file_is_damage_and_holds_up_nobody() {
    let node = Node::new();
    mkfifoat(CWD, node.file(), Mode::from_raw_mode(0o644)).unwrap();
    let error = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap_err();
    assert_eq!(error.code, Code::StateCorrupt);
    assert_eq!(fgpu_spec::Error::from(node.store.leases().unwrap_err()).code, Code::StateCorrupt);
    node.store.rebuild(false).unwrap();
    reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
}

#[test]
fn it_holds_on_a_disk() {
    // Where temporary files are, which is a disk as often as not; there every change is synced.
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let maker = Process::current().unwrap();
    let lease = reserve(&store, 1, 250_000, &applicant("a", maker)).unwrap();
    assert!(store.activate(&lease.grant.nonce, Some(maker), None).unwrap());
    assert_eq!(Store::open(dir.path()).unwrap().leases().unwrap().len(), 1);
    assert_eq!(store.reconcile().unwrap(), []);
    assert!(store.release(&lease.grant.nonce).unwrap().is_some());
    assert_eq!(store.release(&Nonce([1; 16])).unwrap(), None);
}

/// The file of the node with `change` made to it, and a check that is right.
fn rewritten(node: &Node, change: impl FnOnce(String) -> String) -> String {
    let text = change(fs::read_to_string(node.file()).unwrap());
    let at = text.find(r#"","boot":"#).unwrap();
    let check = format!("{:016x}", twox_hash::XxHash3_64::oneshot(&text.as_bytes()[at..]));
    let text = [&text[..at - 16], &check, &text[at..]].concat();
    fs::write(node.file(), &text).unwrap();
    text
}

/// What a newer release wrote is no damage: it is refused with the versions, and stays where and as it is.
#[test]
fn a_file_of_a_newer_release_is_refused_and_not_kept_aside() {
    let format = |text: String| text.replacen(r#""version":1"#, r#""version":2"#, 1);
    let tier = |text: String| text.replacen(r#""tier":"quota""#, r#""tier":"vgpu""#, 1);
    let head = |text: String| text.replacen(r#","gpus":["#, r#","newer":1,"gpus":["#, 1);
    let file = |text: String| text.replacen(r#"","leases""#, r#"","newer":1,"leases""#, 1);
    // Whether a look at all heads fails, and whether a line as a whole cannot be read.
    type Change = fn(String) -> String;
    let changes: [(&str, bool, bool, Change); 4] = [
        ("has format version 2, and fgpu ", true, true, format),
        ("is whole and holds what fgpu ", false, true, tier),
        ("is whole and holds what fgpu ", true, false, head),
        ("is whole and holds what fgpu ", true, true, file),
    ];
    for (word, heads, lines, change) in changes {
        let node = Node::new();
        let nonce = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap().grant.nonce;
        let text = rewritten(&node, change);
        let mut errors: Vec<fgpu_spec::Error> = Vec::new();
        if heads {
            errors.push(reserve(&node.store, 1, 250_000, &applicant("c", node.spawn())).unwrap_err());
            errors.push(node.store.has(&key("a")).unwrap_err().into());
            errors.push(node.store.release_key(&key("a")).unwrap_err().into());
        }
        if lines {
            // It falls short, and would look who holds what.
            errors.push(reserve(&node.store, 1, 800_000, &applicant("c", node.spawn())).unwrap_err());
            errors.push(node.store.leases().unwrap_err().into());
            errors.push(node.store.reconcile().unwrap_err().into());
            errors.push(node.store.activate(&nonce, None, None).unwrap_err().into());
            errors.push(node.store.release(&nonce).unwrap_err().into());
            errors.push(node.store.rebuild(false).unwrap_err().into());
        }
        for error in errors {
            assert_eq!(error.code, Code::StateCorrupt, "{error}");
            assert!(
                error.message.contains(word) && error.message.contains(env!("CARGO_PKG_VERSION")),
                "{error}"
            );
        }
        assert_eq!(kept(&node), Vec::<PathBuf>::new());
        assert_eq!(fs::read_to_string(node.file()).unwrap(), text);
    }
}

/// A rebuild gives up no lease that a newer release can read.
#[test]
fn a_rebuild_keeps_off_lines_of_a_newer_release() {
    let node = Node::new();
    reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    reserve(&node.store, 1, 250_000, &applicant("b", node.spawn())).unwrap();
    let boot = twox_hash::XxHash3_64::oneshot(
        fs::read_to_string(node.file()).unwrap().split('"').nth(9).unwrap().as_bytes(),
    );
    let text = fs::read_to_string(node.file()).unwrap();
    let line = text.lines().nth(1).unwrap();
    let newer = line.replacen(r#""tier":"quota""#, r#""tier":"vgpu""#, 1);
    let end = newer.find(r#","seal":"#).unwrap();
    let seal = twox_hash::XxHash3_64::oneshot_with_seed(boot, &newer.as_bytes()[..end]);
    let newer = format!(r#"{},"seal":"{seal:016x}"}},"#, &newer[..end]);
    // Its check is wrong, by the change.
    let torn = text.replace(line, &newer);
    fs::write(node.file(), &torn).unwrap();
    assert!(
        matches!(node.store.rebuild(false), Err(Error::Unknown { .. })),
        "{:?}",
        node.store.rebuild(false)
    );
    assert_eq!(fs::read_to_string(node.file()).unwrap(), torn);
}

/// What we know of a GPU's MIG instances.
#[test]
fn mig_states_of_every_older_release_are_read() {
    let node = Node::new();
    let inventory = crate::node::mig_inventory(1, 0);
    let gpu = &inventory.gpus[0];
    let text = include_str!("../../testdata/0.1.0/mig.json");
    let boot = fs::read_to_string(node.path("proc/sys/kernel/random/boot_id")).unwrap();
    let text = text.replace("BOOT", boot.trim()).replace("GPU-UUID", &gpu.uuid);
    let path = node.path("state/mig/0.json");
    let lock = node.store.slices().lock_driver(gpu).unwrap();
    fs::write(&path, &text).unwrap();
    assert_eq!(node.store.slices().foreign(gpu).unwrap().len(), 2);
    assert_eq!(node.store.slices().orphans(&inventory).unwrap().len(), 1);
    // And with more in it.
    fs::write(&path, text.replacen("{", r#"{"version":1,"newer":{},"#, 1)).unwrap();
    let orphans = node.store.slices().orphans(&inventory).unwrap();
    assert_eq!(orphans.len(), 1);
    // What is written says its version, and is what was there.
    node.store.slices().record_foreign(&lock, gpu, &node.store.slices().foreign(gpu).unwrap()).unwrap();
    assert!(fs::read_to_string(&path).unwrap().starts_with(r#"{"version":1,"#));
    assert_eq!(node.store.slices().orphans(&inventory).unwrap(), orphans);
    let newer = text.replacen("{", r#"{"version":2,"#, 1);
    fs::write(&path, &newer).unwrap();
    let errors = [
        node.store.slices().foreign(gpu).unwrap_err(),
        node.store.slices().orphans(&inventory).unwrap_err(),
        node.store.slices().record_foreign(&lock, gpu, &[]).unwrap_err(),
    ];
    for error in errors {
        let error = error.to_string();
        assert!(error.contains("mig/0.json has format version 2") && error.contains("knows 1"), "{error}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), newer, "nothing that was made is forgotten");
    // Of another boot it says nothing, whoever wrote it.
    fs::write(&path, newer.replace(boot.trim(), "other")).unwrap();
    assert_eq!(node.store.slices().foreign(gpu).unwrap(), []);
}
