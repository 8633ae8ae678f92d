//! The relay between a fake containerd and a fake stock shim, over real sockets; the engine is a shell
//! script.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use containerd_shim::protos::api::{
    CreateTaskRequest, CreateTaskResponse, DeleteRequest, StartRequest, StateRequest, UpdateTaskRequest,
};
use containerd_shim::protos::protobuf::Message;
use containerd_shim::protos::ttrpc::proto::{Code, MessageHeader, Request, Response};

use super::{Cgroups, Relay, Setup};
use crate::address;
use crate::frame::{HEADER, error_frame, frame};
use crate::job::Work;
use crate::request::SERVICES;

mod ends;

mod reservations;

const NONCE: &str = "0123456789abcdef0123456789abcdef";

/// A relay in a thread, with everything around it in a temporary folder.
struct Bench {
    folder: tempfile::TempDir,
    /// Connections that the relay makes to the stock shim, in order; the first is the control connection.
    stock: Receiver<UnixStream>,
    relay: JoinHandle<()>,
}

impl Bench {
    /// `engine` is what the job does; it is a shell script with the action in `$action`.
    fn new(engine: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let log = at("jobs");
        let script = format!("for action; do :; done\necho \"$*\" >>{}\n{engine}\n", log.display());
        std::fs::write(at("engine"), script).unwrap();
        let listener = UnixListener::bind(at("stock")).unwrap();
        let (sender, stock) = channel();
        std::thread::spawn(move || serve(&listener, &sender));
        let socket = address::front_of(&at("stock"));
        let setup = Setup {
            namespace: "ns".into(),
            id: "c1".into(),
            bundle: folder.path().into(),
            stock: at("stock"),
            engine: become_script,
            cgroups: Cgroups {
                of: |pid| Some(cgroup_of(pid as u32)),
                is_empty: |path| !Path::new(path).exists(),
            },
        };
        let control = UnixStream::connect(at("stock")).unwrap();
        let front = address::listen(&socket).unwrap().unwrap();
        let relay = Relay::new(setup, socket, front, control).unwrap();
        Self { folder, stock, relay: std::thread::spawn(move || relay.serve()) }
    }

    /// One with a client: also the control connection, the client, and its pair's connection as the stock
    /// shim sees it.
    fn with_client(engine: &str) -> (Self, UnixStream, UnixStream, UnixStream) {
        let bench = Self::new(engine);
        let control = bench.stock.recv().unwrap();
        let (client, stock) = bench.client();
        (bench, control, client, stock)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A client, and its pair's connection as the stock shim sees it.
    fn client(&self) -> (UnixStream, UnixStream) {
        let client = UnixStream::connect(address::front_of(&self.at("stock"))).unwrap();
        (client, self.stock.recv().unwrap())
    }

    /// Has the client create `c1`, whose first process is `pid`.
    fn create(&self, client: &UnixStream, pid: u32) {
        let sent = create(1, "c1", &self.bundle("c1"));
        send(client, &sent);
        let call = self.stock.recv().unwrap();
        assert_eq!(read_frame(&call), sent);
        send(&call, &created(1, pid));
        assert_eq!(read_frame(client), created(1, pid));
    }

    /// A bundle that mentions fgpu.
    fn bundle(&self, id: &str) -> PathBuf {
        let bundle = self.at(id);
        std::fs::create_dir_all(&bundle).unwrap();
        std::fs::write(bundle.join("config.json"), r#"{"annotations":{"fgpu/fraction":"0.5"}}"#).unwrap();
        bundle
    }

    /// The actions of the jobs so far.
    fn jobs(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.at("jobs")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Ends the stock shim, of which `connections` are still open, and waits for the relay's end.
    fn end(self, control: UnixStream, connections: Vec<UnixStream>) -> Vec<String> {
        std::fs::remove_file(self.at("stock")).unwrap();
        drop((control, connections));
        self.relay.join().unwrap();
        let front = address::front_of(&self.folder.path().join("stock"));
        assert!(!front.exists(), "the relay removes its socket");
        let log = std::fs::read_to_string(self.folder.path().join("jobs")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

/// Becomes the script, with the work in words.
fn become_script(folder: &Path, work: Work, result: File) -> anyhow::Result<()> {
    let name = work.name().to_str()?;
    let words = match work {
        Work::Prepare { namespace, maker, .. } => format!("-namespace {namespace} -maker {maker}"),
        Work::Activate { nonce, pid } => format!("-nonce {nonce} -pid {pid}"),
        Work::Release { nonce } => format!("-nonce {nonce}"),
        Work::Reopen { namespace, id } => format!("-namespace {namespace} -id {id}"),
        Work::ReleaseContainer { namespace, id } => format!("-namespace {namespace} -id {id}"),
    };
    // The shell reads the script. As a program it could not be run while another test's child still has it
    // open for writing (ETXTBSY).
    let mut shell = Command::new("sh");
    let shell = shell.arg(folder.join("engine")).args(words.split(' ')).arg(name).stdout(result);
    Err(shell.exec().into())
}

fn serve(listener: &UnixListener, sender: &Sender<UnixStream>) {
    while let Ok((connection, _)) = listener.accept() {
        if sender.send(connection).is_err() {
            return;
        }
    }
}

fn request(stream: u32, method: &str, payload: Vec<u8>) -> Vec<u8> {
    let request =
        Request { service: SERVICES[0].into(), method: method.into(), payload, ..Default::default() };
    frame(MessageHeader::new_request(stream, 0), &request.write_to_bytes().unwrap())
}

fn create(stream: u32, id: &str, bundle: &Path) -> Vec<u8> {
    let bundle = bundle.to_str().unwrap().to_owned();
    let create = CreateTaskRequest { id: id.into(), bundle, ..Default::default() };
    request(stream, "Create", create.write_to_bytes().unwrap())
}

fn delete(stream: u32, id: &str) -> Vec<u8> {
    let delete = DeleteRequest { id: id.into(), ..Default::default() };
    request(stream, "Delete", delete.write_to_bytes().unwrap())
}

fn update(stream: u32, id: &str) -> Vec<u8> {
    let update = UpdateTaskRequest { id: id.into(), ..Default::default() };
    request(stream, "Update", update.write_to_bytes().unwrap())
}

fn state(stream: u32, id: &str) -> Vec<u8> {
    let state = StateRequest { id: id.into(), ..Default::default() };
    request(stream, "State", state.write_to_bytes().unwrap())
}

fn done(stream: u32, payload: Vec<u8>) -> Vec<u8> {
    let response = Response { payload, ..Default::default() };
    frame(MessageHeader::new_response(stream, 0), &response.write_to_bytes().unwrap())
}

fn created(stream: u32, pid: u32) -> Vec<u8> {
    let response = CreateTaskResponse { pid, ..Default::default() };
    done(stream, response.write_to_bytes().unwrap())
}

fn read_frame(mut socket: &UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    socket.read_exact(&mut bytes).unwrap();
    let length = MessageHeader::from(&bytes[..]).length as usize;
    bytes.resize(HEADER + length, 0);
    socket.read_exact(&mut bytes[HEADER..]).unwrap();
    bytes
}

fn error_of(frame: &[u8]) -> (u32, Code, String) {
    let response = Response::parse_from_bytes(&frame[HEADER..]).unwrap();
    (MessageHeader::from(frame).stream_id, response.status().code(), response.status().message.clone())
}

fn send(mut socket: &UnixStream, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
}

/// Reads until the other side closes.
fn rest(mut socket: &UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    bytes
}

/// What stands for a container's cgroup: a file that is there as long as it is populated.
fn cgroup_of(pid: u32) -> String {
    std::env::temp_dir().join(format!("fgpu-shim-test-cgroup-{pid}")).to_str().unwrap().to_owned()
}

/// Waits for something that the relay does sooner or later.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A process that stands for a container's first.
fn init() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

const GRANT: &str = "case $action in fgpu-prepare) echo granted 0123456789abcdef0123456789abcdef;; esac";

#[test]
fn frames_go_through_untouched_in_pairs() {
    let bench = Bench::new("exit 1");
    let control = bench.stock.recv().unwrap();
    let (one, one_stock) = bench.client();
    let (two, two_stock) = bench.client();
    let garbage = frame(MessageHeader { length: 0, stream_id: 4, type_: 77, flags: 0xff }, b"anything");
    for (client, stock, id) in [(&one, &one_stock, "a"), (&two, &two_stock, "b")] {
        for sent in [state(1, id), garbage.clone(), request(3, "Exec", vec![0xff; 9]), delete(5, id)] {
            // In two writes, cut within the header.
            send(client, &sent[..7]);
            send(client, &sent[7..]);
            assert_eq!(read_frame(stock), sent);
            send(stock, &sent);
            assert_eq!(read_frame(client), sent);
        }
    }
    // The stock shim closes one connection: it is closed for its client, and the other lives on.
    send(&one_stock, &done(7, b"last".to_vec()));
    drop(one_stock);
    assert_eq!(rest(&one), done(7, b"last".to_vec()));
    send(&two, &state(9, "b"));
    assert_eq!(read_frame(&two_stock), state(9, "b"));
    assert_eq!(bench.end(control, vec![two_stock]), [""; 0]);
    assert_eq!(rest(&two), b"");
}

#[test]
fn big_frames_go_through_in_both_directions_at_once() {
    let (bench, control, client, stock) = Bench::with_client("exit 1");
    // As large as ttrpc allows, larger, and a Create that is too large to be one.
    let up: Vec<Vec<u8>> = [4 << 20, 6 << 20]
        .map(|size| frame(MessageHeader::new_data(1, 0), &vec![0x5a; size]))
        .into_iter()
        .chain([request(3, "Create", vec![1; 5 << 20]), request(5, "Exec", vec![2; 3 << 20])])
        .collect();
    let down: Vec<Vec<u8>> = (0..4).map(|_| done(1, vec![0xa5; 4 << 20])).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| up.iter().for_each(|frame| send(&client, frame)));
        scope.spawn(|| down.iter().for_each(|frame| send(&stock, frame)));
        scope.spawn(|| up.iter().for_each(|frame| assert!(read_frame(&stock) == *frame)));
        scope.spawn(|| down.iter().for_each(|frame| assert!(read_frame(&client) == *frame)));
    });
    bench.end(control, vec![stock]);
}

#[test]
fn a_client_that_says_no_more_is_no_end() {
    let (bench, control, client, stock) = Bench::with_client("exit 1");
    send(&client, &state(1, "a"));
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(&stock), state(1, "a"), "the half close arrives behind the request");
    send(&stock, &done(1, b"state".to_vec()));
    drop(stock);
    assert_eq!(rest(&client), done(1, b"state".to_vec()));
    let (client, stock) = bench.client();
    send(&client, &state(1, "a"));
    assert_eq!(read_frame(&stock), state(1, "a"));
    bench.end(control, vec![stock]);
}

#[test]
fn a_container_without_the_word_is_the_stock_shims_alone() {
    let bench = Bench::new("exit 1");
    let control = bench.stock.recv().unwrap();
    let bundle = bench.bundle("c1");
    std::fs::write(bundle.join("config.json"), "{}").unwrap();
    let (client, stock) = bench.client();
    for sent in [create(1, "c1", &bundle), delete(3, "c1")] {
        send(&client, &sent);
        assert_eq!(read_frame(&stock), sent, "on the client's own pair");
    }
    assert_eq!(bench.end(control, vec![stock]), [""; 0], "no job was run");
}

#[test]
fn a_grant_lives_from_create_to_delete() {
    let (bench, control, client, stock) = Bench::with_client(GRANT);
    let mut init = init();
    bench.create(&client, init.id());
    wait_until(|| bench.jobs().len() == 2);

    send(&client, &delete(3, "c1"));
    assert_eq!(read_frame(&stock), delete(3, "c1"));
    send(&stock, &done(3, b"exit".to_vec()));
    assert_eq!(read_frame(&client), done(3, b"exit".to_vec()));
    // The answer came after the release, and the release after the activation.
    let prepare = format!("-namespace ns -maker {} fgpu-prepare", std::process::id());
    let activate = format!("-nonce {NONCE} -pid {} fgpu-activate", init.id());
    assert_eq!(bench.jobs(), [prepare, activate, format!("-nonce {NONCE} fgpu-release")]);

    // Now it is the stock shim's to say that there is no such container.
    send(&client, &delete(5, "c1"));
    assert_eq!(read_frame(&stock), delete(5, "c1"));
    init.kill().unwrap();
    init.wait().unwrap();
    assert_eq!(bench.end(control, vec![stock]).len(), 3);
}

/// Issue 13, line 11: crun's update closes the GPU.
#[test]
fn the_devices_are_looked_at_before_an_update_is_answered() {
    let (bench, control, client, stock) = Bench::with_client(GRANT);
    send(&client, &update(1, "c1"));
    assert_eq!(read_frame(&stock), update(1, "c1"));
    send(&stock, &done(1, Vec::new()));
    assert_eq!(read_frame(&client), done(1, Vec::new()));
    assert_eq!(bench.jobs().len(), 0, "it has no lease");

    let mut init = init();
    let sent = create(3, "c1", &bench.bundle("c1"));
    send(&client, &sent);
    let call = bench.stock.recv().unwrap();
    assert_eq!(read_frame(&call), sent);
    send(&call, &created(3, init.id()));
    assert_eq!(read_frame(&client), created(3, init.id()));
    let refused = error_frame(7, Code::UNKNOWN, "no such controller");
    for (stream, answer) in [(5, done(5, b"kept".to_vec())), (7, refused)] {
        send(&client, &update(stream, "c1"));
        assert_eq!(read_frame(&stock), update(stream, "c1"));
        send(&stock, &answer);
        assert_eq!(read_frame(&client), answer, "as the stock shim wrote it");
    }
    // However early the update was: the lease knows its init, without which nothing is opened.
    let names: Vec<_> =
        bench.jobs().iter().map(|job| job.rsplit(' ').next().unwrap_or_default().to_owned()).collect();
    assert_eq!(names, ["fgpu-prepare", "fgpu-activate", "fgpu-reopen", "fgpu-reopen"]);
    init.kill().unwrap();
    init.wait().unwrap();
    bench.end(control, vec![stock]);
}

#[test]
fn an_update_of_a_container_that_ends_is_answered() {
    let (bench, control, client, stock) =
        Bench::with_client(&format!("{GRANT}; [ $action != fgpu-activate ] || read line <${{0%/*}}/go"));
    nix::unistd::mkfifo(&bench.at("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut init = init();
    bench.create(&client, init.id());
    send(&client, &update(3, "c1"));
    assert_eq!(read_frame(&stock), update(3, "c1"));
    send(&stock, &done(3, Vec::new()));
    wait_until(|| bench.jobs().len() == 2);
    // Its end comes while the update waits for the activation.
    init.kill().unwrap();
    init.wait().unwrap();
    assert_eq!(read_frame(&client), done(3, Vec::new()));
    std::fs::write(bench.at("go"), "\n").unwrap();
    wait_until(|| bench.jobs().len() == 3);
    assert!(bench.jobs()[2].ends_with("fgpu-release"), "{:?}", bench.jobs());
    bench.end(control, vec![stock]);
}

#[test]
fn an_answer_that_is_held_holds_up_no_other() {
    let (bench, control, client, stock) =
        Bench::with_client(&format!("{GRANT}; [ $action != fgpu-release ] || read line <${{0%/*}}/go"));
    nix::unistd::mkfifo(&bench.at("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    bench.create(&client, std::process::id());

    for request in [state(3, "c1"), delete(5, "c1"), state(7, "c1")] {
        send(&client, &request);
        assert_eq!(read_frame(&stock), request, "in the order in which they came");
    }
    let answers = [done(7, b"before".to_vec()), done(5, b"exit".to_vec()), done(3, b"after".to_vec())];
    // However the bytes come: the held one's header, and its body, in two pieces each.
    let bytes = answers.concat();
    let (first, second, third) = (answers[0].len() + 4, answers[0].len() + HEADER + 3, bytes.len());
    let mut sent = 0;
    for until in [first, second, third] {
        send(&stock, &bytes[sent..until]);
        sent = until;
        if until == first {
            assert_eq!(read_frame(&client), answers[0]);
        }
    }
    assert_eq!(read_frame(&client), answers[2], "the one between waits for the release");
    std::fs::write(bench.at("go"), "\n").unwrap();
    assert_eq!(read_frame(&client), answers[1]);
    bench.end(control, vec![stock]);
}

#[test]
fn an_answer_that_never_comes_leaves_nothing_behind() {
    let (bench, control, client, stock) = Bench::with_client(GRANT);
    let mut init = init();
    bench.create(&client, init.id());
    send(&client, &delete(3, "c1"));
    read_frame(&stock);
    // The stock shim closes this connection in the middle of its answer; it goes on living.
    send(&stock, &done(3, b"exit".to_vec())[..HEADER + 1]);
    drop(stock);
    assert_eq!(rest(&client), b"", "nobody is kept waiting, and half an answer is none");
    init.kill().unwrap();
    init.wait().unwrap();
    let (again, stock) = bench.client();
    wait_until(|| bench.jobs().iter().any(|job| job.ends_with("fgpu-release")));
    send(&again, &delete(1, "c1"));
    assert_eq!(read_frame(&stock), delete(1, "c1"));
    bench.end(control, vec![stock]);
}

#[test]
fn a_reservation_counts_from_its_result_on() {
    let (bench, control, client, stock) =
        Bench::with_client(&format!("{GRANT}; [ $action = fgpu-release ] || read line <${{0%/*}}/go"));
    nix::unistd::mkfifo(&bench.at("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let sent = create(1, "c1", &bench.bundle("c1"));
    send(&client, &sent);
    let call = bench.stock.recv().unwrap();
    assert_eq!(read_frame(&call), sent, "while the job has not ended");
    std::fs::write(bench.at("go"), "\n").unwrap();
    send(&call, &error_frame(1, Code::INTERNAL, "no"));
    assert_eq!(error_of(&read_frame(&client)).2, "no");
    let jobs = bench.end(control, vec![stock]);
    assert_eq!(jobs.len(), 2, "{jobs:?}");
}
