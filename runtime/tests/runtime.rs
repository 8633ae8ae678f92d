//! `fgpu-runtime` as its caller sees it: whatever it hands on must look as if it were not there. The real
//! runtime is a script named `runc` in PATH. `delete` runs it as a child if the container's name is in the
//! allocator file; all other commands become it.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but only sees test functions")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Runtime(tempfile::TempDir);

impl Runtime {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // By a shell: what this process has open for writing while another test forks cannot be executed
        // (ETXTBSY).
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", write]).arg(folder.path().join("runc")).arg(script);
        assert!(shell.status().unwrap().success());
        Self(folder)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu-runtime"));
        command.args(words).env("PATH", format!("{}:/usr/bin:/bin", self.0.path().display()));
        command
    }

    /// As [`Runtime::command`] on a node of its own, whose allocator file has the name of `c1` and is no good
    /// otherwise. Needs root. `wrapper` runs it.
    fn holding(&self, wrapper: &[&str], words: &[&str]) -> Command {
        let script = "mount -t tmpfs none /run && mkdir /run/fgpu && printf %s \"$0\" >/run/fgpu/allocations.json && \
            exec \"$@\"";
        let line = r#""key":{"namespace":"runc","id":"c1"}"#;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", script, line]).args(wrapper);
        unshare.arg(self.command(&[]).get_program()).args(words);
        unshare.env("PATH", format!("{}:/usr/bin:/bin", self.0.path().display()));
        unshare
    }

    /// The command line for a container, by the way in which its runtime is run: as a child, or in our place.
    fn both_ways(&self) -> [(&'static str, Command); 2] {
        [("child", self.holding(&[], &["delete", "c1"])), ("exec", self.command(&["delete", "c1"]))]
    }
}

#[test]
fn output_and_exit_status_are_the_runtimes() {
    let runtime = Runtime::new("echo \"out $*\"; echo err >&2; exit 42");
    for (way, mut command) in runtime.both_ways() {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(42), "{way}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "out delete c1\n", "{way}");
        assert_eq!(output.stderr, b"err\n", "{way}");
    }
}

#[test]
fn a_runtime_that_is_killed_looks_killed() {
    // SIGPIPE is one that a Rust program ignores in itself.
    for signal in [Signal::SIGKILL, Signal::SIGPIPE, Signal::SIGTERM] {
        for (way, mut command) in Runtime::new(&format!("kill -{} $$", signal as i32)).both_ways() {
            assert_eq!(command.status().unwrap().signal(), Some(signal as i32), "{way}");
        }
    }
}

#[test]
fn a_signal_reaches_the_runtime() {
    let runtime = Runtime::new("trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    let mut child = runtime.holding(&[], &["delete", "c1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "term");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

/// The caller may ignore SIGCHLD. The kernel then reports no child's end, and a wait would never return.
#[test]
fn the_runtimes_end_is_seen_with_any_caller() {
    let runtime = Runtime::new("exit 7");
    let mut command = runtime.holding(&["env", "--ignore-signal=CHLD"], &["delete", "c1"]);
    assert_eq!(command.status().unwrap().code(), Some(7));
}

/// The runtime is grep here, which reads its own signal mask: a shell would have cleared it.
#[test]
fn the_runtime_has_no_signal_blocked() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/grep", folder.path().join("runc")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu-runtime"));
    command.args(["--no-messages", "--regexp=SigBlk", "delete", "/proc/self/status"]);
    let output = command.env("PATH", folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.trim().ends_with("SigBlk:\t0000000000000000"), "{text}");
}

/// Else it would go on to make a container whose lease the reconciler takes for dead.
#[test]
fn the_runtime_dies_with_us() {
    let runtime = Runtime::new("echo ready; exec sleep 600");
    let mut child = runtime.holding(&[], &["delete", "c1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    child.kill().unwrap();
    child.wait().unwrap();
    // The pipe ends when the last process that holds it is dead: without the fix after ten minutes.
    assert!(lines.next().is_none());
}

#[test]
fn descriptors_and_standard_input_go_through() {
    let runtime = Runtime::new("cat; cat <&5; exit 3");
    let wrapper = ["sh", "-c", "exec 5</proc/sys/kernel/ostype; exec \"$@\"", "sh"];
    for verb in ["delete", "state"] {
        let file = runtime.0.path().join("stdin");
        std::fs::write(&file, "in\n").unwrap();
        let mut command = runtime.holding(&wrapper, &[verb, "c1"]);
        let output = command.stdin(std::fs::File::open(file).unwrap()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "in\nLinux\n");
        assert_eq!(output.status.code(), Some(3));
    }
}

/// The container is deleted; a lease that could not be released is the reconciler's.
#[test]
fn a_state_directory_that_fails_does_not_undo_what_the_runtime_did() {
    let runtime = Runtime::new("echo deleted");
    let delete = || runtime.holding(&[], &["delete", "c1"]);
    let output = delete().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "deleted\n", "{text}");
    assert!(text.starts_with("fgpu: state-corrupt: "), "{text}");
    assert_eq!(output.status.code(), Some(0), "{text}");
    // Nor does it matter that nobody can be told.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(delete().stdout(Stdio::null()).stderr(full).status().unwrap().code(), Some(0));
}

/// Issue 13, line 7: a container that is none of ours is deleted and updated as if we were not there,
/// whatever our state is like. A lock that somebody holds would stop it for ever.
#[test]
fn a_delete_or_update_of_what_is_not_ours_touches_no_state() {
    let runtime = Runtime::new("echo \"real $*\"; ls -A /run /run/fgpu 2>&1");
    for (state, seen) in [
        (":", "ls: cannot access '/run/fgpu': No such file or directory\n/run:\n"),
        ("mount -n -o remount,ro /run", "ls: cannot access '/run/fgpu': No such file or directory\n/run:\n"),
        ("echo x >/run/fgpu", "/run/fgpu\n\n/run:\nfgpu\n"),
        (
            "mkdir /run/fgpu && echo x >/run/fgpu/allocations.json",
            "/run:\nfgpu\n\n/run/fgpu:\nallocations.json\n",
        ),
        (
            "mkdir /run/fgpu && mkfifo /run/fgpu/allocations.json",
            "/run:\nfgpu\n\n/run/fgpu:\nallocations.json\n",
        ),
        (
            "mkdir -p /run/fgpu/containers && >/run/fgpu/lock && exec 9</run/fgpu/lock && flock 9",
            "/run:\nfgpu\n\n/run/fgpu:\ncontainers\nlock\n",
        ),
    ] {
        for (user, verb) in [("0", "delete"), ("1000", "delete"), ("0", "update"), ("1000", "update")] {
            let script =
                format!("mount -t tmpfs none /run && {{ {state}; }} && exec setpriv --reuid {user} \"$@\"");
            let mut unshare = Command::new("unshare");
            unshare.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
            unshare.arg(runtime.command(&[]).get_program()).args([verb, "c2"]);
            unshare.env("PATH", format!("{}:/usr/bin:/bin", runtime.0.path().display()));
            std::fs::set_permissions(runtime.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
            let output = unshare.output().unwrap();
            let said =
                [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
            let listed = said[0].strip_prefix(&format!("real {verb} c2\n")).map(str::to_owned);
            assert_eq!((listed.as_deref(), &*said[1]), (Some(seen), ""), "{state}, {verb}, uid {user}");
        }
    }
}

/// Issue 13, line 9: sockets that were opened for us are the runtime's (sd_listen_fds(3)); those for somebody
/// else are not.
#[test]
fn sockets_are_for_the_process_that_becomes_the_runtime() {
    let runtime = Runtime::new("echo $((LISTEN_PID == $$)) $LISTEN_PID $LISTEN_FDS ${LISTEN_PIDFDID-none}");
    let wrapper = |pid: &'static str| {
        [
            "sh",
            "-c",
            "LISTEN_PID=$0 LISTEN_FDS=1 LISTEN_PIDFDID=7; test $0 != own || LISTEN_PID=$$; \
            export LISTEN_PID LISTEN_FDS LISTEN_PIDFDID; exec \"$@\"",
            pid,
        ]
    };
    for verb in ["delete", "state"] {
        let said = |pid| {
            let output = runtime.holding(&wrapper(pid), &[verb, "c1"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(said("own").starts_with("1 "), "{verb}: {}", said("own"));
        assert_eq!(said("own").ends_with(" 1 none\n"), verb == "delete", "{verb}: {}", said("own"));
        assert_eq!(said("1"), "0 1 1 7\n", "{verb}");
    }
}

#[test]
fn a_runtime_that_is_not_there_is_named_on_stderr_and_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu-runtime"));
    command.args(["--log", log.to_str().unwrap(), "--log-format", "json", "create", "c1"]);
    let output = command.env("PATH", folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("fgpu: internal: none of the runtimes runc, crun"), "{text}");
    let entry: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(log).unwrap()).unwrap();
    assert_eq!(entry["msg"].as_str().unwrap(), text.trim());
}

/// What we have open is not the runtime's, nor through it the container's (CVE-2024-21626).
#[test]
fn the_runtime_gets_no_descriptor_of_ours() {
    let runtime = Runtime::new("ls /proc/self/fd");
    let with = |verb: &str| runtime.holding(&[], &[verb, "c1"]).stdin(Stdio::null()).output().unwrap().stdout;
    let mut alone = Command::new(runtime.0.path().join("runc"));
    let alone = alone.stdin(Stdio::null()).output().unwrap().stdout;
    assert!(!alone.is_empty());
    for verb in ["delete", "state"] {
        assert_eq!(String::from_utf8_lossy(&with(verb)), String::from_utf8_lossy(&alone), "{verb}");
    }
}

/// In a mount namespace in which this is the node's configuration. Needs root.
fn with_config(runtime: &Runtime, words: &[&str], config: &str) -> std::process::Output {
    let script =
        "mount -t tmpfs none /etc && mkdir /etc/fgpu && echo \"$0\" >/etc/fgpu/config.toml && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--propagation", "private", "sh", "-c", script, config])
        .arg(runtime.command(&[]).get_program())
        .args(words);
    unshare.env("PATH", format!("{}:/usr/bin:/bin", runtime.0.path().display())).output().unwrap()
}

/// A running container can be stopped under a broken configuration. Without a bundle, `create` leaves the
/// error to the runtime.
#[test]
fn a_container_can_be_stopped_under_a_broken_configuration() {
    let runtime = Runtime::new("echo \"real $*\"");
    let run = |words: &[&str], config: &str| with_config(&runtime, words, config);
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    for config in ["polisy = \"pack\"", "runtimes = [", "runtimes = []", "runtimes = 3"] {
        for words in [&["kill", "c1", "KILL"][..], &["state", "c1"], &["delete", "c1"], &["create", "c1"]] {
            let output = run(words, config);
            assert_eq!(
                (said(&output), output.status.code()),
                (format!("real {}\n", words.join(" ")), Some(0))
            );
        }
    }
    // Of several errors it is not the one that matters here.
    let other = "polisy = \"pack\"\nruntimes = [\"/bin/echo\"]";
    assert_eq!(said(&run(&["state", "c1"], other)), "state c1\n");
}

/// And to start what has nothing to do with a GPU.
#[test]
fn a_broken_configuration_stops_nobody_who_asks_for_nothing() {
    let runtime = Runtime::new("echo real");
    let bundle = runtime.0.path().to_str().unwrap();
    for (spec, asks) in [
        (r#"{}"#, false),
        (r#"{"annotations":{"org.example/fgpu":"1"},"process":{"env":["PATH=/bin","FGPU=1"]}}"#, false),
        (r#"{"annotations":{"fgpu/fraction":"0.25"}}"#, true),
        (r#"{"annotations":{"fgpu/fracton":"0.25"}}"#, true),
        // What these mean is up to the configuration.
        (r#"{"annotations":{"gpu-fraction":"0.25"}}"#, true),
        (r#"{"process":{"env":["FGPU_FRACTION=0.25"]}}"#, true),
    ] {
        std::fs::write(runtime.0.path().join("config.json"), spec).unwrap();
        let output = with_config(&runtime, &["create", "--bundle", bundle, "c1"], "polisy = \"pack\"");
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let expected = if asks { (Some(1), "") } else { (Some(0), "real\n") };
        assert_eq!((output.status.code(), &*said[0]), expected, "{spec}: {}", said[1]);
        assert_eq!(said[1].contains("polisy"), asks, "{spec}: {}", said[1]);
    }
}
