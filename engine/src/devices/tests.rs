//! [`open`](super::open) as a container meets it, in real cgroups.

use fgpu_spec::{Code, Majors, Plan};

use super::cgroup::ProcessCgroups;
use super::pin::Pin;
use super::program::tests::{allow_all, calling, deny_all, recorded};
use super::{bpf, narrow, open, v2};

pub(super) mod machine;

use machine::{ACCESSES, DEVICES, Group, Tenant, Version, node, with};

const NONE: u32 = 0;
const ALLOW_OVERRIDE: u32 = 1;
const ASKED: (char, u32, u32) = ('c', 240, 7);

/// What is expected of a container that could do `before` and was then given 240:7 and 195:255.
fn widened(before: &[bool]) -> Vec<bool> {
    let questions = DEVICES.iter().flat_map(|device| ACCESSES.map(|access| (access, *device)));
    let given = |(access, device): (&str, _)| access != "m" && [ASKED, ('c', 195, 255)].contains(&device);
    before.iter().zip(questions).map(|(allowed, question)| *allowed || given(question)).collect()
}

#[test]
fn a_program_lets_the_devices_through_and_nothing_else_and_is_put_back() {
    for flags in [NONE, ALLOW_OVERRIDE, bpf::ALLOW_MULTI] {
        for code in [recorded("runc"), recorded("crun"), recorded("systemd"), deny_all()] {
            with(Version::V2, || {
                let group = Group::new(Version::V2);
                let id = group.attach(&code, flags);
                let mut tenant = Tenant::new(group.path());
                let before = tenant.all();
                let opened = open(tenant.pid(), &[node(240, 7), node(195, 255)]).unwrap();
                assert_eq!(tenant.all(), widened(&before));
                let (ids, kept) = group.programs();
                assert_eq!((ids.len(), kept), (1, flags));
                opened.undo().unwrap();
                assert_eq!(tenant.all(), before);
                assert_eq!(group.programs(), (vec![id], flags));
            });
        }
    }
}

#[test]
fn every_program_of_a_cgroup_must_allow() {
    with(Version::V2, || {
        let group = Group::new(Version::V2);
        let ids: Vec<u32> = [deny_all(), allow_all(), recorded("runc")]
            .map(|code| group.attach(&code, bpf::ALLOW_MULTI))
            .to_vec();
        let mut tenant = Tenant::new(group.path());
        let opened = open(tenant.pid(), &[node(240, 7)]).unwrap();
        assert!(tenant.may("rw", ASKED));
        assert!(!tenant.may("rw", ('c', 240, 8)));
        let (now, _) = group.programs();
        assert_eq!(now.len(), 3);
        assert_eq!(now[1], ids[1], "what allows it already is not replaced");
        opened.undo().unwrap();
        assert_eq!(group.programs().0, ids, "the same programs in the same order");
    });
}

#[test]
fn an_allowed_node_is_left_alone() {
    with(Version::V2, || {
        let group = Group::new(Version::V2);
        let tenant = Tenant::new(group.path());
        open(tenant.pid(), &[node(240, 7)]).unwrap().undo().unwrap();
        assert_eq!(group.programs().0, [0u32; 0], "without a program everything is allowed");
        let id = group.attach(&allow_all(), bpf::ALLOW_MULTI);
        let opened = open(tenant.pid(), &[node(240, 7)]).unwrap();
        assert_eq!(group.programs().0, [id]);
        // A second hook, or the same one again, adds nothing.
        let opened_again = open(tenant.pid(), &[node(240, 7)]).unwrap();
        opened_again.undo().unwrap();
        opened.undo().unwrap();
        assert_eq!(group.programs().0, [id]);
    });
}

/// crun's layout under systemd: systemd's program on the scope, crun's on a cgroup in it.
#[test]
fn a_scope_around_the_container_is_its_own() {
    with(Version::V2, || {
        let slice = Group::new(Version::V2);
        let scope = slice.child("libpod-1.scope");
        let inner = scope.child("container");
        let ids = [
            scope.attach(&recorded("systemd"), bpf::ALLOW_MULTI),
            inner.attach(&recorded("crun"), bpf::ALLOW_MULTI),
        ];
        let mut tenant = Tenant::new(inner.path());
        let before = tenant.all();
        let opened = open(tenant.pid(), &[node(240, 7), node(195, 255)]).unwrap();
        assert_eq!(tenant.all(), widened(&before));
        opened.undo().unwrap();
        assert_eq!([scope.programs().0, inner.programs().0], ids.map(|id| vec![id]));
    });
}

/// A parent that is no scope is shared, even while nothing else is in it.
#[test]
fn a_parent_that_forbids_is_named_and_nothing_is_changed() {
    with(Version::V2, || {
        let parent = Group::new(Version::V2);
        let group = parent.child("container");
        let outer = parent.attach(&recorded("systemd"), bpf::ALLOW_MULTI);
        let inner = group.attach(&recorded("runc"), bpf::ALLOW_MULTI);
        let mut tenant = Tenant::new(group.path());
        let error = open(tenant.pid(), &[node(1, 3), node(240, 7)]).unwrap_err();
        assert_eq!(error.code, Code::Internal);
        let named = format!(
            "{}, which is not the container's alone, forbids /dev/x7 (c 240:7)",
            parent.path().display()
        );
        assert!(error.message.contains(&named), "{error}");
        assert_eq!([parent.programs().0, group.programs().0], [vec![outer], vec![inner]]);
        assert!(!tenant.may("r", ASKED));
    });
}

/// A container that has joined another's cgroup, or has none of its own (`--cgroups=disabled`).
#[test]
fn a_cgroup_with_somebody_else_in_it_is_not_changed() {
    for version in [Version::V1, Version::V2] {
        for below in [false, true] {
            with(version, || {
                let group = Group::new(version);
                match version {
                    Version::V1 => group.write("devices.deny", "a"),
                    Version::V2 => drop(group.attach(&deny_all(), bpf::ALLOW_MULTI)),
                }
                let tenant = Tenant::new(group.path());
                let inner = below.then(|| group.child("inner"));
                let other = Tenant::new(inner.as_ref().unwrap_or(&group).path());
                let error = open(tenant.pid(), &[node(240, 7)]).unwrap_err();
                assert!(error.message.contains("not the container's alone"), "{error}");
                drop(other);
                open(tenant.pid(), &[node(240, 7)]).unwrap().undo().unwrap();
            });
        }
    }
}

/// crun 1.28 under systemd: what is in a file is attached again on a reload.
#[test]
fn a_file_that_holds_the_program_gets_the_new_one() {
    use std::os::fd::AsFd;
    with(Version::V2, || {
        let group = Group::new(Version::V2);
        let (old, other) = (bpf::load(&recorded("crun")).unwrap(), bpf::load(&recorded("systemd")).unwrap());
        let pin = |name: &str, program: &std::os::fd::OwnedFd| {
            let path = format!("{}/{name}", machine::PINS);
            bpf::pin(&std::ffi::CString::new(path.clone()).unwrap(), program.as_fd()).unwrap();
            Pin::new(&path).unwrap()
        };
        let pins = [pin("other_scope", &other), pin("x_scope", &old)];
        let attach = || bpf::attach(group.directory().as_fd(), old.as_fd(), bpf::ALLOW_MULTI, None).unwrap();
        attach();
        let mut tenant = Tenant::new(group.path());
        let pid = tenant.pid();
        // A hook that was killed left this.
        pin("x_scope_fgpu", &other);
        let allow = || {
            let mut done = Vec::new();
            let branch = ProcessCgroups::of(pid).unwrap().v2.unwrap();
            v2::allow(branch, &[node(240, 7)], &pins, &mut done).unwrap();
            assert!(pins[0].holds(&other), "not this cgroup's program");
            assert!(!pins[1].holds(&old));
            assert!(!std::path::Path::new(machine::PINS).join("x_scope_fgpu").exists());
            done.pop().unwrap()
        };
        allow().undo().unwrap();
        assert!(pins[1].holds(&old));

        let replaced = allow();
        assert!(tenant.may("rw", ASKED));
        attach(); // a reload that had opened the file before
        replaced.undo().unwrap();
        assert_eq!(group.programs().0, [bpf::id(old.as_fd()).unwrap()]);
        assert!(!tenant.may("rw", ASKED));

        let replaced = allow();
        pins[1].put(&other).unwrap();
        replaced.undo().unwrap();
        assert!(pins[1].holds(&other), "somebody else's is not taken out");
    });
}

#[test]
fn a_program_that_was_replaced_since_is_not_undone() {
    with(Version::V2, || {
        let group = Group::new(Version::V2);
        group.attach(&recorded("runc"), NONE);
        let tenant = Tenant::new(group.path());
        let opened = open(tenant.pid(), &[node(240, 7)]).unwrap();
        let newer = group.attach(&recorded("runc"), NONE);
        opened.undo().unwrap();
        assert_eq!(group.programs().0, [newer]);
    });
}

#[test]
fn a_cgroup_that_is_gone_has_nothing_to_undo() {
    for version in [Version::V1, Version::V2] {
        with(version, || {
            let group = Group::new(version);
            match version {
                Version::V1 => group.write("devices.deny", "a"),
                Version::V2 => drop(group.attach(&deny_all(), bpf::ALLOW_MULTI)),
            }
            let tenant = Tenant::new(group.path());
            let opened = open(tenant.pid(), &[node(240, 7)]).unwrap();
            drop(tenant);
            let path = group.path().to_owned();
            drop(group);
            // Made anew under its name, it is another's.
            std::fs::create_dir(&path).unwrap();
            opened.undo().unwrap();
            std::fs::remove_dir(&path).unwrap();
        });
    }
}

#[test]
fn a_program_that_cannot_be_loaded_again_is_refused_and_the_others_put_back() {
    with(Version::V2, || {
        let group = Group::new(Version::V2);
        let ids = [deny_all(), calling()].map(|code| group.attach(&code, bpf::ALLOW_MULTI));
        let mut tenant = Tenant::new(group.path());
        let error = open(tenant.pid(), &[node(240, 7)]).unwrap_err();
        assert!(error.message.contains("it calls a function"), "{error}");
        assert_eq!(group.programs().0, ids);
        assert!(!tenant.may("r", ASKED));
    });
}

/// As runc sets a v1 cgroup up.
fn limited_v1() -> Group {
    let group = Group::new(Version::V1);
    group.write("devices.deny", "a");
    for rule in ["c *:* m", "b *:* m", "c 1:3 rwm", "c 10:200 rwm"] {
        group.write("devices.allow", rule);
    }
    group
}

#[test]
fn a_list_lets_the_devices_through_and_nothing_else_and_is_put_back() {
    with(Version::V1, || {
        let group = limited_v1();
        let list = group.read("devices.list");
        let mut tenant = Tenant::new(group.path());
        let before = tenant.all();
        let opened = open(tenant.pid(), &[node(240, 7), node(1, 3), node(195, 255)]).unwrap();
        assert_eq!(tenant.all(), widened(&before));
        opened.undo().unwrap();
        assert_eq!(tenant.all(), before);
        assert_eq!(group.read("devices.list"), list);
    });
}

#[test]
fn a_list_keeps_what_it_had() {
    with(Version::V1, || {
        let group = limited_v1();
        group.write("devices.allow", "c 240:7 rm");
        group.write("devices.allow", "c 195:* rw");
        let list = group.read("devices.list");
        let mut tenant = Tenant::new(group.path());
        let opened = open(tenant.pid(), &[node(240, 7), node(195, 255)]).unwrap();
        assert!(tenant.may("rw", ASKED));
        opened.undo().unwrap();
        assert_eq!(group.read("devices.list"), list);
        assert!(tenant.may("r", ASKED) && !tenant.may("w", ASKED));
    });
}

#[test]
fn a_list_cannot_allow_what_its_parent_does_not() {
    with(Version::V1, || {
        let parent = limited_v1();
        parent.write("devices.allow", "c 240:8 rw");
        let group = parent.child("container");
        group.write("devices.deny", "c 240:8 rw");
        let list = group.read("devices.list");
        let tenant = Tenant::new(group.path());
        let error = open(tenant.pid(), &[node(240, 8), node(240, 7)]).unwrap_err();
        assert!(error.message.contains("a parent cgroup does not allow it"), "{error}");
        assert_eq!(group.read("devices.list"), list, "the first was taken back");
    });
}

#[test]
fn a_list_is_opened_from_the_scope_inwards() {
    with(Version::V1, || {
        let slice = Group::new(Version::V1);
        let scope = slice.child("libpod-1.scope");
        scope.write("devices.deny", "a");
        let inner = scope.child("container");
        let mut tenant = Tenant::new(inner.path());
        let opened = open(tenant.pid(), &[node(240, 7)]).unwrap();
        assert!(tenant.may("rw", ASKED));
        opened.undo().unwrap();
        assert_eq!((scope.read("devices.list"), inner.read("devices.list")), (String::new(), String::new()));
    });
}

#[test]
fn in_the_root_cgroup_nothing_is_limited() {
    for version in [Version::V1, Version::V2] {
        with(version, || {
            let tenant = Tenant::new(&Group::root(version));
            let opened = open(tenant.pid(), &[node(240, 7)]).unwrap();
            assert!(opened.rules.is_empty() && opened.programs.is_empty());
        });
    }
}

#[test]
fn a_process_that_has_ended_has_no_cgroup() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert!(open(child.id().cast_signed(), &[node(240, 7)]).is_err());
}

/// GPU 0 and a capability of it.
fn granted() -> Plan {
    Plan {
        nodes: vec![node(195, 255), node(195, 0)],
        majors: Majors::new([195], [234], [1, 10, 240, 241]),
        ..Plan::default()
    }
}

/// What is expected of a container that could do `before` and was then narrowed to GPU 0.
fn narrowed(before: &[bool]) -> Vec<bool> {
    let questions = DEVICES.iter().flat_map(|device| ACCESSES.map(|access| (access, *device)));
    let taken =
        |(access, device): (&str, _)| access != "m" && [('c', 195, 1), ('c', 234, 31)].contains(&device);
    before.iter().zip(questions).map(|(allowed, question)| *allowed && !taken(question)).collect()
}

#[test]
fn a_program_that_allows_too_much_is_outvoted() {
    for flags in [NONE, ALLOW_OVERRIDE, bpf::ALLOW_MULTI] {
        with(Version::V2, || {
            let group = Group::new(Version::V2);
            let id = group.attach(&allow_all(), flags);
            let mut tenant = Tenant::new(group.path());
            let before = tenant.all();
            match narrow(tenant.pid(), &granted(), "c *:* rwm") {
                Ok(()) => {
                    assert_eq!(flags, bpf::ALLOW_MULTI);
                    assert_eq!(tenant.all(), narrowed(&before));
                    assert_eq!(group.programs().0.len(), 2);
                    open(tenant.pid(), &granted().nodes).unwrap().undo().unwrap();
                    assert_eq!(tenant.all(), narrowed(&before));
                }
                Err(error) => {
                    assert_ne!(flags, bpf::ALLOW_MULTI, "{error}");
                    assert_eq!(error.code, Code::Conflict);
                    assert!(error.message.contains("`c *:* rwm`"), "{error}");
                    assert_eq!(group.programs(), (vec![id], flags));
                }
            }
        });
    }
    // A container without any program: all was allowed.
    with(Version::V2, || {
        let group = Group::new(Version::V2);
        let mut tenant = Tenant::new(group.path());
        let before = tenant.all();
        narrow(tenant.pid(), &granted(), "x").unwrap();
        assert_eq!(tenant.all(), narrowed(&before));
    });
}

#[test]
fn rules_that_allow_too_much_are_replaced() {
    for rules in [
        &["c 195:* rwm"][..],
        &["c 195:1 rw", "c 195:0 rw"],
        &["c 195:* r", "c 195:* w", "c 234:* rw"],
        &["c *:* rwm"],
        &["c *:1 rw", "c 240:* rw"],
        &["c 234:31 rwm", "c 195:1 r"],
    ] {
        with(Version::V1, || {
            let group = limited_v1();
            rules.iter().for_each(|rule| group.write("devices.allow", rule));
            let mut tenant = Tenant::new(group.path());
            let before = tenant.all();
            narrow(tenant.pid(), &granted(), rules[0]).unwrap();
            let opened = open(tenant.pid(), &granted().nodes).unwrap();
            let after = tenant.all();
            let mut expected = narrowed(&before);
            for (at, device) in DEVICES.iter().enumerate() {
                if [('c', 195, 255), ('c', 195, 0)].contains(device) {
                    expected[at * ACCESSES.len()..][..3].fill(true);
                }
            }
            assert_eq!(after, expected, "{rules:?}");
            drop(opened);
        });
    }
}

#[test]
fn a_rule_that_cannot_be_removed_is_a_conflict() {
    let conflict = |version, prepare: &(dyn Fn(&Group) -> Group + Sync), word: &str| {
        with(version, || {
            let outer = Group::new(version);
            let group = prepare(&outer);
            let tenant = Tenant::new(group.path());
            let error = narrow(tenant.pid(), &granted(), "c 195:* rwm").unwrap_err();
            assert_eq!(error.code, Code::Conflict);
            assert!(error.message.contains(word) && error.message.contains("c 195:* rwm"), "{error}");
        });
    };
    conflict(Version::V1, &|outer| outer.child("all"), "everything is allowed");
    conflict(Version::V1, &|outer| outer.child("libpod-1.scope"), "daemon-reload");
    for version in [Version::V1, Version::V2] {
        with(version, || {
            let group = Group::new(version);
            let (tenant, _other) = (Tenant::new(group.path()), Tenant::new(group.path()));
            let error = narrow(tenant.pid(), &granted(), "c 195:* rwm").unwrap_err();
            assert!(error.message.contains("not the container's alone"), "{error}");
        });
    }
}
