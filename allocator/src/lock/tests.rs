use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use fgpu_spec::Code;

use super::*;

const SHORT: Patience = Patience { word: Duration::from_millis(50), rest: Duration::from_millis(50) };

fn open(path: &Path) -> OwnedFd {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap().into()
}

/// Another process that has the lock until it is killed.
fn hold(path: &Path) -> Child {
    let script = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); \
                  print(flush=True); time.sleep(3600)";
    let mut holder =
        Command::new("python3").args(["-c", script]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    holder
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").arg(signal).arg(child.id().to_string()).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_wait_ends_with_the_name_of_who_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let host = Host::default();
    let mut other = hold(&path);
    let error = take(open(&path), &path, &host, SHORT).unwrap_err();
    let error = fgpu_spec::Error::from(error);
    assert_eq!(error.code, Code::TimedOut);
    let holding = holder(&host, &path).unwrap();
    assert_eq!(holding.pid.unsigned_abs(), other.id());
    assert!(error.message.contains(&holding.to_string()), "{error}");
    signal(&other, "-STOP");
    while holder(&host, &path).unwrap().state != Some('T') {
        thread::yield_now();
    }
    assert!(holder(&host, &path).unwrap().to_string().ends_with(", which is stopped)"));
    other.kill().unwrap();
    other.wait().unwrap();
    // A waiter that gave up leaves no lock behind, though its thread gets it now.
    for _ in 0..2 {
        drop(take(open(&path), &path, &host, PATIENCE).unwrap());
    }
}

#[test]
fn a_waiter_gets_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let host = Host::default();
    let mut other = hold(&path);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(open(&path), &path, &host, PATIENCE));
        // Either it waits by now, or it finds the lock free.
        thread::sleep(Duration::from_millis(20));
        other.kill().unwrap();
        other.wait().unwrap();
        waiter.join().unwrap().unwrap();
    });
}
