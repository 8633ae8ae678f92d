//! What a hook hears of those who start it: its arguments and its standard input.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::container::Container;
use crate::life::{USUAL, assert_has_its_gpu};
use crate::node::{Node, told};

const QUARTER: &[(&str, &str)] = &[("fgpu/fraction", "0.25")];

/// The environment, umask and working directory of an enemy.
fn hostile(node: &Node, umask: u32) -> std::process::Command {
    let mut hook = node.hook(&["createRuntime"]);
    let folder = node.path("gone");
    fs::create_dir_all(&folder).unwrap();
    for (name, value) in [
        ("PATH", "/evil"),
        ("LD_LIBRARY_PATH", "/evil"),
        ("HOME", "/evil"),
        ("TMPDIR", "/evil"),
        ("RUST_LOG", "trace"),
        ("FGPU_FRACTION", "1"),
        ("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/evil"),
        ("_OCI_SYNCPIPE", "3"),
    ] {
        hook.env(name, value);
    }
    hook.current_dir(&folder);
    // A shell between, which sets the umask, opens a descriptor and removes the folder that it is in.
    let mut shell = std::process::Command::new("/bin/sh");
    let script =
        format!("umask {umask:04o}; exec 7</dev/null; rmdir {}; exec \"$0\" \"$@\"", folder.display());
    shell.args(["-c", &script]).arg(hook.get_program()).args(hook.get_args());
    for (name, value) in hook.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell.env("PATH", "/usr/bin:/bin:/evil").current_dir(&folder);
    shell
}

#[test]
fn a_hostile_environment_changes_nothing() {
    let node = Node::new(1);
    for umask in [0o777, 0] {
        let mut container = Container::new(&node, QUARTER);
        container.start(USUAL);
        let output = container.run(&mut hostile(&node, umask));
        assert_eq!(told(&output), "exit status: 0: ");
        assert_has_its_gpu(&node, &container, "hostile environment");
        let mode = |path: &str| container.rootfs.join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("usr"), mode("run/fgpu"), mode("usr/lib64/libcuda.so.1")), (0o755, 0o755, 0o644));
        let lease = node.leases().remove(0);
        let files = node.path("state/containers").join(lease.grant.nonce.to_string());
        let mode = |name: &str| files.join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("limits"), mode("own/ledger")), (0o644, 0o666));
        container.kill();
        assert!(container.hook(&node, &["poststop"]).status.success());
    }
}

/// `fgpu inventory --refresh` is started with a stale inventory: it hears nothing either, and has no more
/// privileges than it needs.
#[test]
fn programs_that_the_hook_starts_inherit_nothing() {
    let node = Node::new(1);
    let state = node.path("state");
    let fresh = node.path("fresh.json");
    fs::rename(state.join("inventory.json"), &fresh).unwrap();
    let script = format!(
        // What is started besides, for which nobody waits, is another test's.
        "#!/bin/sh\n[ \"$1\" != driver ] || exit 0\n{{ echo \"args $*\"; pwd; umask; ls /proc/self/fd; cat /proc/self/status; }} > {seen}\n\
         tr '\\0' '\\n' < /proc/self/environ > {environment}\ncp {fresh} {state}/inventory.json\n",
        seen = node.path("seen").display(),
        environment = node.path("environment").display(),
        fresh = fresh.display(),
        state = state.display()
    );
    let program = node.path("bin/fgpu");
    // Written by a shell: a file that this process has open for writing while another test forks cannot be
    // executed.
    let written = std::process::Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", &script])
        .arg(&program)
        .status();
    assert!(written.unwrap().success());
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    let output = container.run(&mut hostile(&node, 0));
    assert_eq!(told(&output), "exit status: 0: ");
    let seen = fs::read_to_string(node.path("seen")).unwrap();
    let mut lines = seen.lines();
    assert_eq!(lines.next(), Some("args inventory --refresh"));
    assert_eq!(lines.next(), Some("/"));
    assert_eq!(lines.next(), Some("0022"));
    assert!(!lines.any(|line| line == "7"), "{seen}");
    let field = |name: &str| seen.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("NoNewPrivs:"), "1");
    let set = |name: &str| u64::from_str_radix(&field(name), 16).unwrap();
    assert_eq!((set("CapInh:"), set("CapAmb:")), (0, 0));
    // capabilities(7), by number.
    let kept =
        [0, 1, 3, 6, 7, 12, 16, 18, 19, 21, 24, 27, 34].iter().fold(0, |set, number| set | 1u64 << number);
    assert_eq!((set("CapBnd:") & !kept, set("CapEff:") & !kept), (0, 0), "{seen}");
    let environment = fs::read_to_string(node.path("environment")).unwrap();
    // A shell as /bin/sh adds PWD and such to its children's; `tr` shows what it was given of ours: nothing.
    for word in ["evil", "FGPU", "_OCI", "HOME", "DBUS"] {
        assert!(!environment.contains(word), "{environment}");
    }
}

/// A rootless engine cannot take part, and is told what to do instead.
#[test]
fn a_rootless_engine_is_told_what_to_use() {
    let node = Node::new(1);
    fs::set_permissions(node.path("state"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    let mut hook = node.hook(&["createRuntime"]);
    hook.uid(65534).gid(65534);
    let text = told(&container.run(&mut hook));
    assert!(
        text.starts_with(
            "exit status: 1: fgpu: denied: fgpu/fraction=0.25: this container engine is rootless"
        ),
        "{text}"
    );
    assert!(text.contains("sudo podman"), "{text}");
    node.assert_nothing_held("rootless");
}

/// crun sends what a hook prints to /dev/null; the reason is then on crun's own standard error.
#[test]
fn an_error_that_nobody_would_see_goes_to_the_runtime() {
    let node = Node::new(1);
    let mut container = Container::new(&node, &[("fgpu/fraction", "3")]);
    container.start(USUAL);
    let mut runtime = std::process::Command::new("/bin/sh");
    // In a child of its own: some shells redirect their own standard error for as long as a program runs.
    runtime.args(["-c", "(exec \"$0\" createRuntime 2>/dev/null); exit $?"]).arg(node.path("bin/fgpu-hook"));
    let text = told(&container.run(&mut runtime));
    assert!(text.starts_with("exit status: 1: fgpu: invalid-request: fgpu/fraction=3"), "{text}");
    // Otherwise it is told once.
    let text = told(&container.hook(&node, &["createRuntime"]));
    assert_eq!(text.matches("fgpu: invalid-request").count(), 1, "{text}");
}

#[test]
fn wrong_arguments_are_told_and_the_state_is_read_all_the_same() {
    let node = Node::new(1);
    let container = Container::new(&node, QUARTER);
    for words in [
        &["createRuntime", "--timeout"][..],
        &["createRuntime", "--timeout", "0"],
        &["createRuntime", "--timeout", "soon"],
        &["prestart", "nonce"],
        &["startContainer"],
        &["poststop", "a", "b"],
        &[],
    ] {
        let output = container.hook(&node, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", told(&output));
        assert!(told(&output).contains("usage: fgpu-hook createRuntime"), "{words:?}");
    }
}

/// Podman's stage: the spec comes back edited, and the grant ends with the container.
#[test]
fn precreate_edits_the_spec_that_it_is_given() {
    let node = Node::new(1);
    let bundle = node.path("storage/overlay-containers/abc/userdata");
    fs::create_dir_all(bundle.join("root")).unwrap();
    let spec = serde_json::json!({
        "ociVersion": "1.2.0",
        "root": {"path": bundle.join("root")},
        "annotations": {"fgpu/fraction": "0.25"},
        "mounts": [{"destination": "/run/.containerenv", "type": "bind", "source": "/run/x/userdata/.containerenv"}],
    });
    let edit = |spec: &str| {
        let mut hook = node.hook(&["precreate"]);
        hook.current_dir(&bundle).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut hook = hook.spawn().unwrap();
        std::io::Write::write_all(&mut hook.stdin.take().unwrap(), spec.as_bytes()).unwrap();
        hook.wait_with_output().unwrap()
    };
    let output = edit(&spec.to_string());
    assert!(output.status.success(), "{}", told(&output));
    let edited: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lease = node.leases().remove(0);
    assert_eq!(edited["annotations"]["fgpu/grant"], lease.grant.nonce.to_string());
    assert_eq!(edited["hooks"]["poststop"][0]["args"][2], lease.grant.nonce.to_string());
    assert_eq!(lease.key.id, "abc");
    assert_eq!(lease.maker.pid, std::process::id() as i32);
    assert_eq!(lease.pid_file.unwrap(), std::path::Path::new("/run/x/userdata/pidfile"));
    // A container that has its grant keeps its spec.
    let output = edit(&edited.to_string());
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(), edited);
    assert_eq!(node.leases().len(), 1);
    node.store().release(&lease.grant.nonce).unwrap();

    // So does one that asks for nothing, also where the configuration cannot be read.
    let plain = r#"{"ociVersion": "1.2.0",  "root": {"path": "/x"}}"#;
    assert_eq!(String::from_utf8_lossy(&edit(plain).stdout), plain);
    let config = fs::read_to_string("/etc/fgpu/config.toml").unwrap();
    fs::write("/etc/fgpu/config.toml", "no such key").unwrap();
    assert_eq!(String::from_utf8_lossy(&edit(plain).stdout), plain);
    fs::write("/etc/fgpu/config.toml", config).unwrap();
    node.assert_nothing_held("precreate");
    // An error answers with nothing.
    let output = edit(r#"{"annotations": {"fgpu/fraction": "2"}}"#);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    node.assert_nothing_held("precreate");
}
