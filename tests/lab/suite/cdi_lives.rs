//! Lives of a container with a CDI device: restarts, a reboot, and kills.

use std::thread;
use std::time::{Duration, Instant};

use fgpu_lab::command::{Output, run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::shuffle::Random;
use fgpu_lab::{daemons, docker, node, process};

use crate::cdi::with;
use crate::hook::assert_nothing_is_left;

pub(crate) const TESTS: &[Test] = &[
    Test::once("cdi_lives::docker_restarts_what_always_restarts", docker_restarts_what_always_restarts),
    Test::once("cdi_lives::after_a_reboot_all_is_as_before", after_a_reboot_all_is_as_before),
    Test::once("cdi_lives::nothing_is_left_after_any_kill", nothing_is_left_after_any_kill),
];

/// Docker before 28.2 does not start containers with CDI devices again by itself (moby#49989).
fn restarts_containers() -> bool {
    let version = run(["docker", "version", "--format", "{{.Server.Version}}"]);
    let mut numbers = version.ok().split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(28), Some(2))
}

/// A container that Docker starts again. A starting dockerd asks it to end first, and `sleep` heeds only
/// SIGKILL.
fn restarting() -> docker::Container {
    with("busybox", &["0.75"])
        .options(["--restart", "always", "--stop-signal", "KILL"])
        .command(["sleep", "1000"])
        .start()
}

fn docker_restarts_what_always_restarts() {
    let container = restarting();
    let first = node::only_lease();
    let again = |before: &node::Lease| {
        wait_until("the next life of a container", || {
            node::leases().iter().any(|lease| lease.id == container.id && lease.nonce != before.nonce)
        });
        // A dockerd that is killed before it has seen the start knows nothing of it afterwards.
        wait_until("Docker to know of it", || container.inspect("{{.State.Running}}") == "true");
        node::only_lease()
    };
    // Its process ends by itself.
    assert!(process::kill(container.pid()));
    let second = again(&first);
    daemons::kill(&["dockerd"]);
    daemons::start();
    if restarts_containers() {
        let third = again(&second);
        daemons::kill(&["dockerd", "containerd"]);
        daemons::start();
        again(&third);
    } else {
        wait_until("the end of its life", || node::leases().is_empty());
        container.docker(&["start"]).ok();
        again(&second);
    }
    container.remove();
    node::wait_until_free();
    assert_nothing_is_left();
}

/// Everything ends at once, and /run is empty.
fn after_a_reboot_all_is_as_before() {
    let container = restarting();
    let before = node::only_lease();
    let init = container.pid();
    daemons::kill(&["dockerd", "containerd"]);
    for shim in process::running("/usr/bin/containerd-shim-runc-v2", "") {
        process::kill(shim.pid);
    }
    process::kill(init);
    wait_until("the end of everything", || !process::lives(init));
    let options = run(["sed", "-n", "s/^Options=//p", "/usr/lib/systemd/system/run-fgpu.mount"]);
    shell(
        "for place in $(awk '{print $5}' /proc/self/mountinfo | grep -E '^/run/(fgpu|docker|containerd)(/|$)|^/var/lib/docker/' | tac); do \
         umount -l $place || exit 1; done; \
         rm -rf /run/cdi /run/docker /run/containerd /run/runc /run/docker.pid /run/fgpu/*",
    )
    .ok();
    shell(&format!("mount -t tmpfs -o {} fgpu /run/fgpu && fgpu cdi --write", options.ok())).ok();
    assert_eq!(node::leases(), []);
    daemons::start();
    if !restarts_containers() {
        container.docker(&["start"]).ok();
    }
    wait_until("its life after the reboot", || node::leases().iter().any(|lease| lease.id == container.id));
    assert_ne!(node::only_lease().nonce, before.nonce);
    container.remove();
    node::wait_until_free();
    assert_nothing_is_left();
}

/// A program that is killed: which of its processes in a container's life it may be, and how many
/// microseconds after that one was seen.
const KINDS: [(&str, u64, u64); 5] = [
    ("/usr/bin/fgpu-hook", 2, 5_000),
    ("/usr/sbin/runc", 3, 50_000),
    ("/usr/bin/containerd-shim-runc-v2", 2, 300_000),
    ("/usr/bin/containerd", 1, 500_000),
    ("/usr/sbin/dockerd", 1, 500_000),
];
/// How often each is killed.
const KILLS: usize = 4;

fn nothing_is_left_after_any_kill() {
    let mut random = Random::new(16);
    for (program, number, delay) in KINDS {
        let mut kills = 0;
        // One that has ended by then is not killed. A hook lives for some milliseconds.
        for round in 0.. {
            if kills == KILLS {
                break;
            }
            assert!(round < 200, "{program} was killed {kills} times");
            let client = thread::spawn(|| with("busybox", &["0.5"]).command(["sleep", "0.2"]).try_start());
            let mut wanted = random.below(number) + 1;
            let mut seen = Vec::new();
            let start = Instant::now();
            // A lease may outlive a container whose hook was killed in an earlier round.
            while wanted > 0 && node_is_busy(&client) && start.elapsed() < Duration::from_secs(10) {
                let fresh = process::running(program, "").into_iter().find(|one| !seen.contains(&one.pid));
                if let Some(process) = fresh {
                    seen.push(process.pid);
                    wanted -= 1;
                }
            }
            if wanted == 0 {
                thread::sleep(Duration::from_micros(random.below(delay)));
                kills += usize::from(seen.pop().is_some_and(process::kill));
            }
            let _ = client.join().expect("the client ends");
            daemons::start();
        }
        tidy();
        assert_nothing_is_left();
    }
}

/// Whether a client is at work, or the container that it started.
fn node_is_busy(client: &thread::JoinHandle<Result<docker::Container, Output>>) -> bool {
    !client.is_finished() || !node::leases().is_empty()
}

/// Ends what is left of containers after an engine was killed. A Docker that was killed while it started one
/// may not be able to remove it until it has been started anew.
fn tidy() {
    wait_until("the end of the containers that were given up", || {
        run(["fgpu", "gc"]).ok();
        !node::inits().into_iter().any(process::kill)
    });
    if shell("docker rm --force $(docker ps --all --quiet)").status != 0 {
        daemons::kill(&["dockerd", "containerd"]);
        for shim in process::running("/usr/bin/containerd-shim-runc-v2", "") {
            process::kill(shim.pid);
        }
        daemons::start();
    }
    docker::remove_all();
    run(["fgpu", "gc"]).ok();
}
