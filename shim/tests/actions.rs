//! The program as containerd runs it, in front of a fake stock shim: a shell script for its actions, a thread
//! of this test for its socket.

#![allow(clippy::unwrap_used)] // clippy takes only #[test] functions for tests, not what they share

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use containerd_shim::protos::api::ConnectResponse;
use containerd_shim::protos::protobuf::Message;
use containerd_shim::protos::ttrpc::proto::{Code, MessageHeader, Request, Response, Status};

const SCRIPT: &str = r#"#!/bin/sh
for action; do :; done
here=${0%/*}
case $action in
    start) cat "$here/answer"; exit $(cat "$here/status") ;;
    delete) echo $$ >"$here/pid"; printf deleted; echo warned >&2; exit $(cat "$here/status") ;;
    *) echo "stock $*"; cat; exit 9 ;;
esac
"#;

/// A bundle, a stock shim, and the socket of the latter.
struct Bench {
    folder: tempfile::TempDir,
    /// What the stock shim was asked on its socket.
    asked: Arc<Mutex<Vec<String>>>,
    /// Stands for the stock shim's process.
    process: Child,
    /// The stock shim's ends of its connections; they close with it.
    open: Arc<Mutex<Open>>,
}

/// `None` once the stock shim has ended: a connection that is accepted only then closes at once, as the
/// kernel closes those that a process has not accepted yet.
type Open = Option<Vec<UnixStream>>;

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "s", "bundle"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        // By a shell: what this process has open for writing while another test forks cannot be executed
        // (ETXTBSY).
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]);
        let written = shell.arg(folder.path().join("bin/containerd-shim-runc-v2")).arg(SCRIPT).status();
        assert!(written.unwrap().success());
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let bench = Self { folder, asked: Arc::default(), process, open };
        bench.write("bundle/config.json", "{}");
        bench.write("bin/status", "0");
        bench.write("bin/answer", &bench.address());
        let listener = UnixListener::bind(bench.at("s/stock")).unwrap();
        let (pid, asked, open) = (bench.process.id(), bench.asked.clone(), bench.open.clone());
        std::thread::spawn(move || {
            while let Ok((connection, _)) = listener.accept() {
                let Some(open_now) = &mut *open.lock().unwrap() else { continue };
                open_now.push(connection.try_clone().unwrap());
                let (asked, open) = (asked.clone(), open.clone());
                std::thread::spawn(move || answer(&connection, pid, &asked, &open));
            }
        });
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }

    fn address(&self) -> String {
        format!("unix://{}", self.at("s/stock").display())
    }

    /// An action in the bundle.
    fn command(&self, args: &[&str]) -> Command {
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_containerd-shim-fgpu-v2"));
        command
            .args(["-namespace", "ns", "-address", "/none", "-publish-binary", "/none", "-id", "c1"])
            .args(args)
            .env("PATH", path)
            .current_dir(self.at("bundle"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Asks the stock shim something through the relay, and waits for the answer.
    fn call(&self) {
        let mut client = UnixStream::connect(self.at("s/stock.fgpu")).unwrap();
        let (service, method) = ("containerd.task.v2.Task".into(), "Connect".into());
        let body = Request { service, method, ..Default::default() }.write_to_bytes().unwrap();
        client.write_all(&Vec::from(MessageHeader::new_request(1, body.len() as u32))).unwrap();
        client.write_all(&body).unwrap();
        client.read_exact(&mut [0; 10]).unwrap();
    }

    /// The pids of the relays of this bench.
    fn relays(&self) -> Vec<i32> {
        let socket = self.at("s/stock.fgpu").to_str().unwrap().to_owned();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            args.split(|&byte| byte == 0).any(|arg| arg == socket.as_bytes())
        })
        .collect()
    }

    /// The pid of the one relay. Its arguments can be read a moment after execve(2) has let `start` go on.
    fn relay(&self) -> i32 {
        wait_until(|| !self.relays().is_empty());
        let relays = self.relays();
        assert_eq!(relays.len(), 1, "{relays:?}");
        relays[0]
    }

    /// The stock shim ends.
    fn end(&mut self) {
        let _ = self.process.kill();
        self.process.wait().unwrap();
        close(&self.open);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.end();
        wait_until(|| self.relays().is_empty());
    }
}

fn close(open: &Mutex<Open>) {
    for connection in open.lock().unwrap().take().into_iter().flatten() {
        let _ = connection.shutdown(std::net::Shutdown::Both);
    }
}

/// Answers as a stock shim of containerd 1.x does, which knows no version 3 of the service.
fn answer(mut connection: &UnixStream, pid: u32, asked: &Mutex<Vec<String>>, open: &Mutex<Open>) {
    loop {
        let mut head = [0; 10];
        if connection.read_exact(&mut head).is_err() {
            return;
        }
        let header = MessageHeader::from(&head[..]);
        let mut body = vec![0; header.length as usize];
        connection.read_exact(&mut body).unwrap();
        let request = Request::parse_from_bytes(&body).unwrap();
        asked.lock().unwrap().push(format!("{}/{}", request.service, request.method));
        let mut response = Response::new();
        if request.service == "containerd.task.v2.Task" {
            let connect = ConnectResponse { shim_pid: pid, ..Default::default() };
            response.payload = connect.write_to_bytes().unwrap();
        } else {
            let status = Status { code: Code::UNIMPLEMENTED.into(), ..Default::default() };
            response.status = Some(status).into();
        }
        let body = response.write_to_bytes().unwrap();
        let mut bytes = Vec::from(MessageHeader::new_response(header.stream_id, body.len() as u32));
        bytes.extend(body);
        let _ = connection.write_all(&bytes);
        if request.service == "containerd.task.v2.Task" && request.method == "Shutdown" {
            close(open);
        }
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn start_puts_one_relay_in_front_of_the_stock_shim() {
    let mut bench = Bench::new();
    // As the stock shim of containerd 1.x does.
    bench.write("bundle/address", &bench.address());
    let ours = format!("{}.fgpu", bench.address());
    for _ in 0..2 {
        let output = bench.run(&["start"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!((text(&output.stdout), text(&output.stderr)), (&*ours, ""));
        assert_eq!(bench.read("bundle/address"), ours);
    }
    assert_eq!(bench.relays().len(), 1, "the second container of a pod comes to the first one's relay");
    bench.call();
    assert_eq!(*bench.asked.lock().unwrap(), ["containerd.task.v2.Task/Connect"]);

    bench.end();
    wait_until(|| bench.relays().is_empty());
    let left: Vec<_> =
        std::fs::read_dir(bench.at("s")).unwrap().flatten().map(|file| file.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A relay that ended would take its containers along. `pkill -USR1 containerd-shim` is how an administrator
/// has the stock shims print their stacks.
#[test]
fn the_relay_outlives_what_people_send_to_shims() {
    use nix::sys::signal::{Signal, kill};
    let bench = Bench::new();
    assert!(bench.run(&["start"]).status.success());
    let relay = nix::unistd::Pid::from_raw(bench.relay());
    bench.call();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGPIPE,
    ] {
        kill(relay, signal).unwrap();
        bench.call();
    }
    assert_eq!(bench.relays(), [relay.as_raw()]);
}

#[test]
fn start_answers_json_with_json_and_makes_no_address_file() {
    let bench = Bench::new();
    let answer =
        |address: &str| format!(r#"{{"version":3,"address":"{address}","protocol":"ttrpc","new":[1]}}"#);
    bench.write("bin/answer", &answer(&bench.address()));
    let output = bench.run(&["-debug", "start"]);
    assert_eq!(text(&output.stdout), answer(&format!("{}.fgpu", bench.address())));
    assert!(!bench.at("bundle/address").exists());
}

#[test]
fn a_start_that_fails_is_handed_through() {
    let bench = Bench::new();
    bench.write("bin/status", "3");
    bench.write("bin/answer", "no room");
    let output = bench.run(&["start"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "no room"));
    assert_eq!(bench.relays(), [0; 0]);
}

#[test]
fn a_stock_shim_that_gets_no_relay_is_ended() {
    let bench = Bench::new();
    // Something that is no socket is in the way.
    std::fs::create_dir(bench.at("s/stock.fgpu")).unwrap();
    let output = bench.run(&["start"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert!(text(&output.stderr).contains("stock.fgpu"), "{}", text(&output.stderr));
    let shutdown = ["v3", "v2"].map(|version| format!("containerd.task.{version}.Task/Shutdown"));
    assert_eq!(*bench.asked.lock().unwrap(), shutdown);
}

#[test]
fn delete_ends_the_stock_shim_behind_a_dead_relay() {
    let mut bench = Bench::new();
    let output = bench.run(&["start"]);
    bench.write("bundle/address", text(&output.stdout));
    // The relay lives: nothing is ended. The stock shim's answer and warnings go through.
    let output = bench.run(&["delete"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout), text(&output.stderr)),
        (Some(0), "deleted", "warned\n")
    );
    assert!(bench.process.try_wait().unwrap().is_none());

    let killed = Command::new("kill").args(["-KILL", &bench.relay().to_string()]).status().unwrap();
    assert!(killed.success());
    wait_until(|| bench.relays().is_empty());
    let output = bench.run(&["-bundle", bench.at("bundle").to_str().unwrap(), "delete"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "deleted"));
    assert!(!bench.process.wait().unwrap().success(), "killed");
    assert!(!bench.at("s/stock.fgpu").exists());
}

#[test]
fn a_delete_that_fails_is_handed_through() {
    let bench = Bench::new();
    bench.write("bin/status", "3");
    let output = bench.run(&["delete"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout), text(&output.stderr)),
        (Some(3), "deleted", "warned\n")
    );
}

/// containerd 1.x runs `delete` after every regular end, and waits for it.
#[test]
fn a_delete_with_nothing_to_give_back_becomes_the_stock_shims() {
    let bench = Bench::new();
    let becomes = |bench: &Bench| {
        // With a state directory of its own. Neither program forks.
        let delete = bench.command(&["delete"]);
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", "mount -t tmpfs run /run && exec \"$@\"", "sh"]);
        command.arg(delete.get_program()).args(delete.get_args());
        command.envs(delete.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(bench.at("bundle")).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = child.id();
        assert_eq!(text(&child.wait_with_output().unwrap().stdout), "deleted");
        bench.read("bin/pid").trim() == pid.to_string()
    };
    assert!(becomes(&bench), "it asks for nothing");
    bench.write("bundle/config.json", r#"{"annotations": {"fgpu/fraction": "0.25"}}"#);
    assert!(!becomes(&bench), "its create may have been refused");
    bench.write("bundle/runtime", "");
    assert!(becomes(&bench), "it holds nothing any more");
}

/// containerd was killed while its `delete` ran: what the stock shim says on standard error goes nowhere.
#[test]
fn a_delete_goes_on_if_nobody_takes_its_warnings() {
    let bench = Bench::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = bench.command(&["delete"]).stderr(full()).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "deleted"));
    // Nor is an error of our own another end.
    std::fs::remove_file(bench.at("bin/containerd-shim-runc-v2")).unwrap();
    let mut command = bench.command(&["delete"]);
    let status = command.env("PATH", bench.at("bin")).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn everything_else_is_the_stock_shims() {
    let bench = Bench::new();
    let output = bench.run(&["-info"]);
    assert_eq!(output.status.code(), Some(9));
    let args = "stock -namespace ns -address /none -publish-binary /none -id c1 -info\n";
    assert_eq!(text(&output.stdout), args);
}
