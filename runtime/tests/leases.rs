//! `fgpu-runtime` and the leases of the containers that it makes, on the node of the hook's tests. They need
//! root.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but only sees test functions")]

#[allow(dead_code, reason = "the hook's tests need more of it")]
#[path = "../../hook/tests/live/container.rs"]
mod container;
#[allow(dead_code, reason = "the hook's tests need more of it")]
#[path = "../../hook/tests/live/node.rs"]
mod node;

use std::fs;
use std::process::Output;

use fgpu_spec::Document;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::container::Container;
use crate::node::{Node, told};

/// `create --bundle B --pid-file F ID`, as runc does it: one container of a name, and its init lives on.
const RUNC: &str = r#"
[ -e "$3/there" ] && { echo "container with given ID already exists" >&2; exit 1; }
sleep 4713 </dev/null >/dev/null 2>&1 &
echo $! >"$5"; touch "$3/there""#;

struct Bundle<'a> {
    node: &'a Node,
    container: Container,
}

impl<'a> Bundle<'a> {
    fn new(node: &'a Node) -> Self {
        Self { node, container: Container::new(node, &[("fgpu/fraction", "0.25")]) }
    }

    fn create(&self) -> Output {
        let (bundle, pid_file) = (self.container.bundle.to_str().unwrap(), self.pid_file());
        let words = ["create", "--bundle", bundle, "--pid-file", &pid_file, &self.container.id];
        self.node.runtime(RUNC, &words).output().unwrap()
    }

    fn pid_file(&self) -> String {
        self.container.bundle.join("init.pid").to_str().unwrap().to_owned()
    }

    /// The grant that its config.json names.
    fn grant(&self) -> fgpu_spec::Nonce {
        let text = fs::read_to_string(self.container.bundle.join("config.json")).unwrap();
        Document::parse(&text).unwrap().grant().unwrap()
    }

    /// Ends the container behind everybody's back: nobody releases.
    fn end(&self) {
        let pid: i32 = fs::read_to_string(self.pid_file()).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        fs::remove_file(self.container.bundle.join("there")).unwrap();
        while fgpu_allocator::Process::of(pid).is_some() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_second_create_takes_nothing_from_the_container_that_runs() {
    let node = Node::new(1);
    let bundle = Bundle::new(&node);
    let made = bundle.create();
    assert!(made.status.success(), "{}", told(&made));
    let lease = node.leases().remove(0);
    let refused = bundle.create();
    assert_eq!(told(&refused), "exit status: 1: container with given ID already exists\n");
    assert_eq!(node.leases(), [lease], "it is the running container's");
    bundle.end();
}

/// The bundle still names the grant of its former life.
#[test]
fn each_life_of_a_bundle_has_a_grant_of_its_own() {
    let node = Node::new(1);
    let bundle = Bundle::new(&node);
    let mut former = Vec::new();
    for _ in 0..3 {
        let made = bundle.create();
        assert!(made.status.success(), "{}", told(&made));
        let leases = node.leases();
        let [lease] = &leases[..] else { panic!("{leases:?}") };
        assert_eq!(lease.grant.nonce, bundle.grant());
        assert!(!former.contains(&lease.grant.nonce), "the dead one's grant was taken for its own");
        former.push(lease.grant.nonce);
        bundle.end();
    }
}

/// As containerd starts a runtime: it reads the log file as lines of JSON.
#[test]
fn each_step_is_told_to_whoever_asks_for_it() {
    let node = Node::new(1);
    let container = Container::new(&node, &[("fgpu/fraction", "0.25")]);
    let (bundle, log) = (container.bundle.to_str().unwrap(), node.path("log.json"));
    let pid_file = container.bundle.join("init.pid");
    // The log's options are global: RUNC finds its own behind them.
    let script = format!("shift 4; [ $1 = --debug ] && shift; {}", RUNC.trim());
    let create = |debug: &[&str]| {
        let global = ["--log", log.to_str().unwrap(), "--log-format", "json"];
        let words = ["create", "--bundle", bundle, "--pid-file", pid_file.to_str().unwrap(), &container.id];
        let output = node.runtime(&script, &[&global, debug, &words].concat()).output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        let pid: i32 = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        while fgpu_allocator::Process::of(pid).is_some() {
            std::thread::yield_now();
        }
        fs::remove_file(container.bundle.join("there")).unwrap();
        fs::read_to_string(&log).unwrap_or_default()
    };
    assert_eq!(create(&[]), "", "a create that goes well says nothing");
    let text = create(&["--debug"]);
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let messages: Vec<String> =
        text.lines().map(|text| line(text)["msg"].as_str().unwrap().to_owned()).collect();
    let name = format!("prepare(container=runc/{}): ", container.id);
    assert!(messages.iter().all(|message| message.starts_with(&name)), "{messages:#?}");
    for step in ["asks for fgpu/fraction=0.25", "reserve: close time.busy=", "deliver: close time.busy="] {
        assert!(
            messages.iter().any(|message| message[name.len()..].starts_with(step)),
            "{step}: {messages:#?}"
        );
    }
}
