//! Against peers that answer, lie, break off and say nothing.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

use super::wire::canned;
pub(in super::super) use super::wire::canned::Canned;
use super::*;

/// Far longer than any answer of a thread here takes.
pub(in super::super) const LONG: Duration = Duration::from_secs(600);
/// For those who never answer.
const SHORT: Duration = Duration::from_millis(50);

/// A peer that gives its answers in order, each connection all of them from the start.
pub(in super::super) struct Peer {
    _folder: tempfile::TempDir,
    pub(in super::super) path: PathBuf,
    calls: JoinHandle<Vec<Vec<u8>>>,
}

impl Peer {
    /// For one connection.
    pub(in super::super) fn new(answers: Vec<Canned>) -> Self {
        Self::raw(move |stream| answer(stream, answers))
    }

    /// Breaks a first connection off, and answers on a second.
    pub(in super::super) fn lost_at_first(answers: Vec<Canned>) -> Self {
        Self::listening(move |listener| {
            shake_hands(&mut listener.accept().unwrap().0);
            answer(&mut listener.accept().unwrap().0, answers)
        })
    }

    fn raw(serve: impl FnOnce(&mut UnixStream) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        Self::listening(move |listener| serve(&mut listener.accept().unwrap().0))
    }

    fn listening(serve: impl FnOnce(&UnixListener) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let calls = std::thread::spawn(move || serve(&listener));
        Self { _folder: folder, path, calls }
    }

    /// What it was asked, once whoever asked is gone.
    pub(in super::super) fn calls(self) -> Vec<Vec<u8>> {
        self.calls.join().unwrap()
    }
}

fn answer(stream: &mut UnixStream, answers: Vec<Canned>) -> Vec<Vec<u8>> {
    let mut calls = Vec::new();
    shake_hands(stream);
    for answer in answers {
        let Some(call) = read_call(stream) else { break };
        let serial = u32::from_le_bytes(*call[8..].first_chunk().unwrap());
        calls.push(call);
        stream.write_all(&canned::reply(serial, &answer)).unwrap();
    }
    calls
}

/// The whole handshake must be there in one read; see [`Connection::authenticate`].
fn shake_hands(stream: &mut UnixStream) {
    let mut buffer = [0; 256];
    let count = stream.read(&mut buffer).unwrap();
    let text = std::str::from_utf8(&buffer[..count]).unwrap();
    assert!(text.starts_with("\0AUTH EXTERNAL ") && text.ends_with("\r\nBEGIN\r\n"), "{text:?}");
    stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap();
}

fn read_call(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut start = [0; wire::FIXED];
    stream.read_exact(&mut start).ok()?;
    let mut call = start.to_vec();
    call.resize(wire::FIXED + wire::length_after(&start).unwrap(), 0);
    stream.read_exact(&mut call[wire::FIXED..]).unwrap();
    Some(call)
}

const METHOD: Method<'_> = Method { destination: "a.b", path: "/a", interface: "a.b.C", member: "Do" };

#[test]
fn a_call_has_its_answer() {
    let pairs = vec![("/dev/null", "rwm"), ("char-*", "m")];
    let peer = Peer::new(vec![
        Canned::Path("/x/y"),
        Canned::Text("some text"),
        Canned::Pairs(pairs.clone()),
        Canned::Pairs(vec![]),
        Canned::Error("a.b.Wrong"),
    ]);
    let mut connection = Connection::to_peer(&peer.path, LONG).unwrap().unwrap();
    let mut call = || connection.call(METHOD, Body::default().string("x").boolean(true)).unwrap();
    let mut contents = || match call() {
        Reply::Return(contents) => contents,
        Reply::Error { name, .. } => panic!("{name}"),
    };
    assert_eq!(contents().path().unwrap(), "/x/y");
    assert_eq!(contents().property().unwrap(), "some text");
    let own = |(first, second): &(&str, &str)| ((*first).to_owned(), (*second).to_owned());
    assert_eq!(contents().property_pairs().unwrap(), pairs.iter().map(own).collect::<Vec<_>>());
    assert_eq!(contents().property_pairs().unwrap(), []);
    match call() {
        Reply::Error { name, text } => assert_eq!((&*name, &*text), ("a.b.Wrong", "as it was told")),
        Reply::Return(_) => panic!("an error was due"),
    }
    drop(connection);
    assert_eq!(peer.calls().len(), 5);
}

#[test]
fn a_value_of_another_type_is_an_error() {
    let peer = Peer::new(vec![Canned::Text("x"), Canned::Nothing, Canned::Pairs(vec![("a", "b")])]);
    let mut connection = Connection::to_peer(&peer.path, LONG).unwrap().unwrap();
    let mut contents = || match connection.call(METHOD, Body::default()).unwrap() {
        Reply::Return(contents) => contents,
        Reply::Error { name, .. } => panic!("{name}"),
    };
    assert!(contents().property_pairs().is_err());
    assert!(contents().property().is_err());
    let pairs = contents();
    assert!(pairs.property().is_err() && pairs.path().is_err());
}

#[test]
fn a_missing_listener_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    assert!(Connection::to_peer(&path, LONG).unwrap().is_none());
    drop(UnixListener::bind(&path).unwrap());
    assert!(Connection::to_peer(&path, LONG).unwrap().is_none(), "a socket that its owner left behind");
}

/// Nothing is said at all; before the handshake, in it, and after it.
#[test]
fn silence_ends_with_the_patience() {
    let silent = |speak: fn(&mut UnixStream)| {
        let peer = Peer::raw(move |stream| {
            speak(stream);
            // Until the other end has given up.
            while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
            Vec::new()
        });
        let connection = Connection::to_peer(&peer.path, SHORT);
        let error = match connection {
            Ok(connection) => connection.unwrap().call(METHOD, Body::default()).map(drop).unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        peer.calls();
    };
    // On a busy machine the other end may have given up before this is said.
    silent(|_| {});
    silent(|stream| drop(stream.write_all(b"OK 0123")));
    silent(|stream| drop(stream.write_all(b"OK 0123\r\n")));
}

/// Nobody takes the connection, and the queue is full.
#[test]
fn a_queue_that_is_full_ends_with_the_patience() {
    use nix::sys::socket::{Backlog, bind, listen};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    assert_eq!(Connection::to_peer(&path, SHORT).unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn lies_are_errors() {
    let endless = [b'x'; 4096];
    let huge = [b"OK \r\n".as_slice(), b"l\x02\x01\x01\xff\xff\xff\x7f\x01\0\0\0\0\0\0\0"].concat();
    let other_order = [b"OK \r\n".as_slice(), b"B\x02\x01\x01\0\0\0\0\x01\0\0\0\0\0\0\0"].concat();
    // A field whose text is longer than the message.
    let cut = [
        b"OK \r\n".as_slice(),
        b"l\x02\x01\x01\0\0\0\0\x01\0\0\0\x10\0\0\0",
        b"\x05\x01s\0\xff\xff\0\0\0\0\0\0\0\0\0\0",
    ]
    .concat();
    for lie in [b"REJECTED EXTERNAL\r\n".as_slice(), b"", &endless, &huge, &other_order, &cut] {
        let said = lie.to_vec();
        let peer = Peer::raw(move |stream| {
            let count = stream.read(&mut [0; 256]).unwrap();
            assert!(count > 0);
            // The other end may have gone before it was all said.
            let _ = stream.write_all(&said);
            // With something unread left, closing would take back what was said.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
            Vec::new()
        });
        let connection = Connection::to_peer(&peer.path, LONG);
        let result = connection.and_then(|connection| connection.unwrap().call(METHOD, Body::default()));
        let error = result.map(drop).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::TimedOut, "{lie:?}");
        peer.calls();
    }
}
