//! `fgpu-hook` as a hook of plain runc and crun: what Docker's containers get through the other front ends.

use std::fs;

use fgpu_lab::bundle::{Bundle, HOOK, bundle, runtimes};
use fgpu_lab::command::{Output, run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::{node, process};
use serde_json::{Value, json};

pub(crate) const TESTS: &[Test] = &[
    Test::once("hook::container_gets_its_share", container_gets_its_share),
    Test::once("hook::both_stages_are_one_grant", both_stages_are_one_grant),
    Test::once("hook::container_without_annotation_is_untouched", container_without_annotation_is_untouched),
    Test::once("hook::two_gpus_are_two", two_gpus_are_two),
    Test::once("hook::read_only_root_and_another_user_work", read_only_root_and_another_user_work),
    Test::once("hook::malformed_requests_are_refused", malformed_requests_are_refused),
    Test::once("hook::a_request_that_does_not_fit_is_refused", a_request_that_does_not_fit_is_refused),
    Test::once("hook::waiting_gets_the_room_that_comes", waiting_gets_the_room_that_comes),
    Test::once("hook::share_ends_with_the_container", share_ends_with_the_container),
    Test::once("hook::environment_is_not_heard", environment_is_not_heard),
    Test::once(
        "hook::an_administrator_changes_no_file_of_the_node",
        an_administrator_changes_no_file_of_the_node,
    ),
];

/// UUID, total and used MiB of each GPU.
const QUERY: &str = "nvidia-smi --query-gpu=uuid,memory.total,memory.used --format=csv,noheader,nounits";

/// A bundle with `fgpu-hook` at createRuntime.
fn hooked(runtime: &str, image: &str) -> Bundle {
    bundle(runtime, image).fgpu("createRuntime")
}

/// `major:minor` of a simulated device node.
pub(crate) fn number(path: &str) -> String {
    run(["stat", "--format", "%Hr:%Lr", &format!("/opt/fgpu-sim{path}")]).ok().to_owned()
}

/// Checks from inside all that a container with 0.25 of GPU 0 has, and what it has not. `print` runs a shell
/// script in it.
#[track_caller]
pub(crate) fn assert_has_quarter_of_first(mut print: impl FnMut(&str) -> Output) {
    let gpus = node::gpus();
    let granted = gpus[0].share(250_000);
    let [first, second] = [0, 1].map(|index| number(&format!("/dev/nvidia{}", gpus[index].minor)));
    let absent = format!("/dev/nvidia{}", gpus[1].minor);
    let script = format!(
        "{QUERY}; alloc count info fill; nodes /dev/nvidia{} /dev/nvidiactl /dev/nvidia-uvm {absent}; \
         nodes -m {first} {second} 10:229",
        gpus[0].minor
    );
    let output = print(&script);
    let lines: Vec<_> = output.ok().lines().collect();
    assert_eq!(lines.len(), 11, "{}", output.story());
    assert_eq!(lines[0], format!("{}, {}, 0", gpus[0].uuid, granted >> 20));
    assert_eq!(lines[1], "count devices=1");
    assert!(lines[2].ends_with(&format!(" total={granted} device={granted}")), "{}", output.story());
    crate::limit::assert_filled(lines[3], granted);
    // ENXIO: allowed, and no real driver behind it. See the baseline test.
    assert!(lines[4..7].iter().all(|line| line.ends_with(" ENXIO")), "{}", output.story());
    assert_eq!(lines[7], format!("{absent} ENOENT"));
    // A container may make any node; opening it is another matter.
    let made = [format!("{first} ENXIO"), format!("{second} EPERM"), "10:229 EPERM".to_owned()];
    assert_eq!(lines[8..], made, "{}", output.story());
}

fn container_gets_its_share() {
    for runtime in runtimes() {
        for stage in ["createRuntime", "prestart"] {
            let quarter = bundle(runtime, "debian13").fgpu(stage);
            let quarter = quarter.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0").start();
            assert_eq!(node::only_lease().id, quarter.id);
            assert_has_quarter_of_first(|script| quarter.exec(&["sh", "-c", script]));
            quarter.delete();
            assert_nothing_is_left();
        }
        // Not only by exec: the container's own process has it too.
        let once = hooked(runtime, "debian11");
        let once = once.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0");
        let output = once.run(&["sh", "-c", "alloc fill; env -i /opt/programs/alloc fill"]);
        for line in output.ok().lines() {
            crate::limit::assert_filled(line, node::gpus()[0].share(250_000));
        }
        assert_nothing_is_left();
    }
}

/// No lease, no file of one, and no mount of ours on the host.
#[track_caller]
pub(crate) fn assert_nothing_is_left() {
    assert_eq!(node::leases(), []);
    // They go a moment after their lease; nobody but a reconcile would take those that were forgotten.
    wait_until("the end of the files of grants that are no more", || {
        fs::read_dir("/run/fgpu/containers").map_or(true, |mut entries| entries.next().is_none())
    });
    assert_no_mount_is_left();
}

/// What only a container has is not mounted here.
#[track_caller]
pub(crate) fn assert_no_mount_is_left() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let ours = |line: &&str| {
        ["libfgpu", "nvidia-smi", "/run/fgpu/", "/dev/nvidia"].iter().any(|word| line.contains(word))
    };
    // The boards stay until the node's end.
    let stays = |line: &str| line.contains("fgpu-sim.dist") || line.contains(" /run/fgpu/board/");
    let left: Vec<_> = mounts.lines().filter(ours).filter(|line| !stays(line)).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn both_stages_are_one_grant() {
    for runtime in runtimes() {
        let both = bundle(runtime, "debian13").fgpu("prestart").fgpu("createRuntime");
        let both = both.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0").start();
        assert_eq!(node::only_lease().id, both.id);
        assert_has_quarter_of_first(|script| both.exec(&["sh", "-c", script]));
        let mounts = both.exec(&["grep", "-c", " /run/fgpu ", "/proc/self/mountinfo"]);
        assert_eq!(mounts.ok(), "1", "nothing is mounted twice");
        both.delete();
        assert_nothing_is_left();
    }
}

/// With the hook configured and nothing asked for, a container is what it is without the hook.
fn container_without_annotation_is_untouched() {
    // What is numbered or named anew in each life of a container is left out.
    let look = [
        "cut -d ' ' -f 4- /proc/self/mountinfo | grep -v lab-output | sed 's/ - .*//; s/bundle-[0-9]*//g'",
        "find /dev /run /usr/lib /usr/bin -xdev | sort | sha256sum",
        "nodes -m 195:0 195:255",
        "grep Cap /proc/self/status",
        "env",
    ]
    .join("; ");
    for runtime in runtimes() {
        let plain = bundle(runtime, "debian13").run(&["sh", "-c", &look]);
        for stage in ["createRuntime", "prestart"] {
            let with = bundle(runtime, "debian13").fgpu(stage).annotation("org.example/a", "b");
            assert_eq!(with.run(&["sh", "-c", &look]).ok(), plain.ok());
        }
        assert!(plain.ok().contains("195:0 EPERM"), "{}", plain.story());
    }
    assert_nothing_is_left();
}

fn two_gpus_are_two() {
    for runtime in runtimes() {
        let two = hooked(runtime, "debian13");
        let two = two.annotation("fgpu/fraction", "0.5").annotation("fgpu/count", "2").start();
        let lease = node::only_lease();
        assert_eq!(lease.shares.len(), 2);
        let expected: Vec<_> =
            lease.shares.iter().map(|(uuid, memory, _)| format!("{uuid}, {}, 0", memory >> 20)).collect();
        assert_eq!(two.exec(&["sh", "-c", QUERY]).ok(), expected.join("\n"));
        for device in ["0", "1"] {
            let filled = two.exec(&["alloc", "--device", device, "fill"]);
            crate::limit::assert_filled(filled.ok(), lease.shares[0].1);
        }
        two.delete();
        assert_nothing_is_left();
    }
}

fn read_only_root_and_another_user_work() {
    for runtime in runtimes() {
        let output = hooked(runtime, "debian13")
            .annotation("fgpu/memory", "3Gi")
            .edit(|spec| {
                spec["root"]["readonly"] = true.into();
                spec["process"]["user"] = json!({"uid": 1000, "gid": 1000});
                spec["process"]["noNewPrivileges"] = true.into();
                spec["process"]["capabilities"] = json!({});
            })
            .run(&["alloc", "info", "fill"]);
        let lines: Vec<_> = output.ok().lines().collect();
        assert!(lines[0].ends_with(&format!(" total={0} device={0}", 3u64 << 30)), "{}", output.story());
        crate::limit::assert_filled(lines[1], 3 << 30);
    }
    assert_nothing_is_left();
}

/// Every third row of the table; all of them go through two other front ends.
fn malformed_requests_are_refused() {
    let mut rows = 0;
    crate::malformed::replay(
        |row| {
            rows += usize::from(row.container.is_none());
            row.container.is_none() && rows % 3 == 1
        },
        |row, at| {
            let bundle = hooked(runtimes()[at % runtimes().len()], "busybox");
            let bundle =
                row.annotations.iter().fold(bundle, |bundle, (key, value)| bundle.annotation(key, value));
            bundle.run(&["touch", "/lab-output/started"])
        },
    );
    assert!(rows / 3 >= 20, "{rows} rows");
    let started = run(["find", "/run/lab/output", "-name", "started"]);
    assert_eq!(started.ok(), "", "a container was started");
    assert_nothing_is_left();
}

#[track_caller]
fn refusal(runtime: &str, annotations: &[(&str, &str)]) -> String {
    let before = node::leases();
    let bundle = hooked(runtime, "busybox");
    let bundle = annotations.iter().fold(bundle, |bundle, (key, value)| bundle.annotation(key, value));
    let output = bundle.create();
    assert_eq!(node::leases(), before, "a refused request leaves nothing");
    assert_eq!(bundle.status(), "", "and no container");
    output.refused().to_owned()
}

#[track_caller]
fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

fn a_request_that_does_not_fit_is_refused() {
    for runtime in runtimes() {
        let quarter = [("fgpu/fraction", "0.25"), ("fgpu/device", "0")];
        let start = |annotations: &[(&str, &str)]| {
            let bundle = hooked(runtime, "busybox");
            annotations.iter().fold(bundle, |bundle, (key, value)| bundle.annotation(key, value)).start()
        };
        let four: Vec<_> = (0..4).map(|_| start(&quarter)).collect();
        node::assert_not_overcommitted(&node::gpus(), &node::leases());
        let words = ["fgpu: no-capacity: ", "fgpu/fraction=0.25", "0 MiB and 0% free", "wait for one to end"];
        assert_says(&refusal(runtime, &quarter), &words);
        four[0].delete();
        start(&quarter);
        fgpu_lab::bundle::remove_all();
        assert_eq!(node::leases(), []);

        let most = [("fgpu/fraction", "0.6")];
        let _two = [start(&most), start(&most)];
        assert_says(&refusal(runtime, &most), &["fgpu: fragmented: ", "the largest that fits is 0.4 "]);
        assert_says(&refusal(runtime, &[("fgpu/memory", "81Gi")]), &["fgpu: too-large: "]);
        assert_says(
            &refusal(runtime, &[("fgpu/fraction", "0.1"), ("fgpu/model", "b300")]),
            &["fgpu: no-gpu: "],
        );
        fgpu_lab::bundle::remove_all();
    }
    assert_nothing_is_left();
}

fn waiting_gets_the_room_that_comes() {
    for runtime in runtimes() {
        let whole = |bundle: Bundle| bundle.annotation("fgpu/fraction", "1").annotation("fgpu/device", "0");
        let first = whole(hooked(runtime, "busybox")).start();
        let waits = whole(hooked(runtime, "busybox")).annotation("fgpu/wait", "80s");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waits.create());
            wait_until("a hook that waits", || node::waiting() == 1);
            first.delete();
            waiting.join().expect("the waiting client ends").ok();
        });
        assert_eq!(node::only_lease().id, waits.id);
        let message = refusal(runtime, &[("fgpu/fraction", "1"), ("fgpu/device", "0"), ("fgpu/wait", "1s")]);
        assert_says(&message, &["fgpu: timed-out: "]);
        waits.delete();
    }
    assert_nothing_is_left();
}

/// A runtime runs poststop when it deletes a container; until then, or until a reconcile, the share is held.
fn share_ends_with_the_container() {
    for runtime in runtimes() {
        let half = || hooked(runtime, "busybox").annotation("fgpu/fraction", "0.5");
        let ended = half().run(&["sh", "-c", "exit 3"]);
        assert_eq!(ended.status, 3, "{}", ended.story());
        assert_nothing_is_left();
        half().run(&["no-such-program"]).refused();
        assert_nothing_is_left();

        for signal in ["KILL", "TERM"] {
            let mut one = half();
            // As pid 1 a program is killed only by the signals that it handles.
            one.spec["process"]["args"] =
                json!(["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.01; done"]);
            let one = one.start();
            let init = one.pid();
            wait_until("its trap", || process::handles(init, 15));
            run([runtime, "kill", &one.id, signal]).ok();
            wait_until("the end of a killed container", || !process::lives(init));
            one.runtime(&["delete"]).ok();
            assert_nothing_is_left();
        }
        // Deleted while it runs, and before it was started.
        half().start().delete();
        assert_nothing_is_left();
        let created = half();
        created.create().ok();
        assert_eq!(node::only_lease().id, created.id);
        created.delete();
        assert_nothing_is_left();

        // One that nobody deletes: the reconciler.
        let one = half().start();
        let init = one.pid();
        assert!(process::kill(init));
        wait_until("the end of a killed container", || !process::lives(init));
        run(["fgpu", "gc"]).ok();
        assert_nothing_is_left();
        // Its poststop comes late: the same name and bundle have a new life by then, which keeps its lease.
        let state = json!({"ociVersion": "1.0.2", "id": one.id, "status": "stopped", "bundle": one.path});
        one.delete();
        one.create().ok();
        let lease = node::only_lease();
        poststop(&state);
        assert_eq!(node::only_lease(), lease);
        one.delete();
        assert_nothing_is_left();
    }
}

#[track_caller]
pub(crate) fn poststop(state: &Value) {
    fs::write("/run/lab/state", state.to_string()).expect("/run is writable");
    shell(&format!("{HOOK} poststop </run/lab/state")).ok();
}

/// What a hostile environment has: programs in front of everybody else's, and libraries that no dynamic
/// program survives.
const HOSTILE: &str = r#"
    mkdir -p /run/lab/hostile/cwd && cd /run/lab/hostile
    for name in fgpu fgpu-hook runc crun nvidia-smi nvidia-modprobe ldconfig sh mount; do
        printf '#!/bin/busybox sh\necho '$name' >>/run/lab/hostile/ran; exit 1\n' >$name
        chmod 755 $name
    done
    cp fgpu cwd/fgpu
    printf 'policy = "nonsense"' >cwd/config.toml
    head -c 4096 /dev/urandom >evil.so
    for library in libc.so.6 libnvidia-ml.so.1 libcuda.so.1; do cp evil.so $library; done
"#;

/// The variables with which a hook gets there.
const VARIABLES: [&str; 14] = [
    "PATH=/run/lab/hostile",
    "LD_PRELOAD=/run/lab/hostile/evil.so",
    "LD_LIBRARY_PATH=/run/lab/hostile",
    "LD_AUDIT=/run/lab/hostile/evil.so",
    "HOME=/run/lab/hostile",
    "TMPDIR=/run/lab/hostile",
    "FGPU_FRACTION=1",
    "FGPU_CONFIG=config.toml",
    "FGPU_STATE_DIR=/run/lab/hostile/state",
    "RUST_LOG=trace",
    "GCONV_PATH=.",
    "MALLOC_CHECK_=3",
    "_OCI_SYNCPIPE=0",
    "IFS=/",
];

/// As behind the other front ends (roads.rs).
fn an_administrator_changes_no_file_of_the_node() {
    for runtime in runtimes() {
        let one = bundle(runtime, "debian13").fgpu("createRuntime");
        let one = one.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0").edit(|spec| {
            let sets = spec["process"]["capabilities"].as_object_mut().expect("runc's own spec has them");
            sets.values_mut()
                .for_each(|set| set.as_array_mut().expect("a list").push(json!("CAP_SYS_ADMIN")));
        });
        let one = one.start();
        let before = crate::roads::files_of_the_node();
        assert_has_quarter_of_first(|script| one.exec(&["sh", "-c", script]));
        let written = one.exec(&["sh", "-c", crate::roads::WRITE_EVERYWHERE]);
        assert_eq!(written.ok(), "tried", "{}", written.story());
        assert!(crate::roads::files_of_the_node() == before);
        one.delete();
        assert_nothing_is_left();
    }
}

/// None of that is looked at, nor the working directory, nor the umask.
fn environment_is_not_heard() {
    shell(HOSTILE).ok();
    // busybox is static: what is tried on the hook cannot befall the shell.
    let hook = |words: &str| {
        let script = format!("umask 0777; cd /run/lab/hostile/cwd; exec {HOOK} {words}");
        json!([{"path": "/bin/busybox", "args": ["sh", "-c", script], "env": VARIABLES}])
    };
    for runtime in runtimes() {
        // A stale inventory: the hook runs a program of its own.
        let _ = fs::remove_file("/run/fgpu/inventory.json");
        let one =
            bundle(runtime, "debian13").annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0");
        let one = one.edit(|spec| {
            let create = hook("createRuntime --timeout 100");
            spec["hooks"] = json!({"createRuntime": create, "poststop": hook("poststop")});
        });
        let one = one.start();
        let lease = node::only_lease();
        assert_eq!(lease.shares[0].2, 250_000);
        assert_has_quarter_of_first(|script| one.exec(&["sh", "-c", script]));
        // What it made can be used by everybody in the container and nobody else, whatever the umask.
        let folder = format!("/run/fgpu/containers/{}", lease.nonce);
        assert_eq!(run(["stat", "--format", "%a", &folder]).ok(), "700");
        let modes = one.exec(&["stat", "--format", "%a", "/run/fgpu/limits", "/run/fgpu/ledger"]);
        assert_eq!(modes.ok(), "644\n666");
        one.delete();
        assert_nothing_is_left();
        let ran = fs::read_to_string("/run/lab/hostile/ran");
        assert!(ran.is_err(), "{ran:?} ran");
        assert!(fs::metadata("/run/lab/hostile/state").is_err());
    }
}
