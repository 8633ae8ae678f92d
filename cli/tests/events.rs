//! `fgpu events` as a user runs it, on a record that is written meanwhile.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(node.0.path(), Permissions::from_mode(0o755)).unwrap();
        let text = format!("state-dir = {:?}\nlog-dir = {:?}\n", node.0.path().join("state"), node.log());
        fs::write(node.0.path().join("config.toml"), text).unwrap();
        node
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("log")
    }

    fn file(&self) -> PathBuf {
        self.log().join("events.jsonl")
    }

    /// What a container leaves when it is granted a share.
    fn grant(&self, id: &str) {
        fs::create_dir_all(self.log()).unwrap();
        let line = format!(
            "{{\"schema\":1,\"time\":\"2016-11-21T10:00:00.000000Z\",\"event\":\"granted\",\"namespace\":\"moby\",\"container\":\"{id}\",\
             \"gpus\":[{{\"uuid\":\"GPU-1\",\"memory\":1073741824,\"cores_ppm\":250000}}]}}\n"
        );
        let mut file = File::options().create(true).append(true).open(self.file()).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // The build folder may be root's alone.
        let program = self.0.path().join("fgpu");
        if !program.exists() {
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_fgpu")).arg(&program).status().unwrap();
            assert!(copied.success());
        }
        let mut command = Command::new(program);
        command.arg("--config").arg(self.0.path().join("config.toml")).arg("events").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_node_on_which_nothing_has_happened_yet() {
    let node = Node::new();
    assert_eq!(node.good(&[]), "Nothing like that is recorded.\n");
    assert_eq!(node.good(&["--json"]), "");
    assert!(!node.log().exists(), "looking makes nothing");
    let wrong = node.run(&["--gpu", "3"]);
    let words = String::from_utf8(wrong.stderr).unwrap();
    assert!(words.starts_with("fgpu: invalid-request: there is no GPU 3; "), "{words}");
    for usage in [&["--event", "grant"][..], &["--since", "yesterday"], &["-n", "x"]] {
        assert_eq!(node.run(usage).status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn a_table_for_people_and_the_records_for_programs() {
    let node = Node::new();
    node.grant("web");
    fs::rename(node.file(), node.log().join("events.jsonl.1")).unwrap();
    node.grant("db");
    let table = node.good(&[]);
    let [header, web, db] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    assert_eq!(header, "DATE        UTC       EVENT    CONTAINER    GPU   MEMORY   SM");
    assert_eq!(web, "2016-11-21  10:00:00  granted  moby/web   GPU-1  1.0 GiB  25%");
    assert!(db.contains("moby/db"), "{table}");
    let records = node.good(&["--json", "--container", "db", "--gpu", "GPU-1", "--event", "granted,lost"]);
    assert_eq!(records, fs::read_to_string(node.file()).unwrap());
}

#[test]
fn a_follower_sees_events_across_a_rotation() {
    let node = Node::new();
    node.grant("before");
    let mut child = node.command(&["--follow", "--last", "1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().starts_with("DATE "));
    assert!(next().contains("moby/before"));
    node.grant("second");
    assert!(next().contains("moby/second"));
    fs::rename(node.file(), node.log().join("events.jsonl.1")).unwrap();
    node.grant("third");
    assert!(next().contains("moby/third"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn everybody_may_look_whom_the_mode_lets() {
    if !rustix::process::geteuid().is_root() {
        return; // only root can become somebody else
    }
    let node = Node::new();
    node.grant("web");
    let nobody = || node.command(&[]).uid(65534).gid(65534).output().unwrap();
    assert!(String::from_utf8(nobody().stdout).unwrap().contains("moby/web"));
    for path in [node.file(), node.log()] {
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let output = nobody();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(words.contains("run this as root, or let everybody look: chmod o+rX "), "{words}");
    }
}
