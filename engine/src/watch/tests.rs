use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use super::*;

fn sleeper() -> (Child, Process) {
    let child = Command::new("sleep").arg("600").spawn().unwrap();
    let process = Process::of(child.id() as i32).unwrap();
    (child, process)
}

#[test]
fn a_process_that_ends_is_missed_whether_before_or_after() {
    let (mut child, process) = sleeper();
    let watch = Watch::default().process(process, "the init");
    watch.check().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for watch in [watch, Watch::default().process(process, "the init")] {
        let error = watch.check().unwrap_err();
        assert_eq!(error.code, Code::Cancelled);
        assert!(error.message.starts_with("the init has ended"), "{error}");
    }
}

#[test]
fn the_callers_are_alive() {
    Watch::default().runtime().engine().check().unwrap();
}

/// A monitor alone has one end of a pair; its engine has the other.
#[test]
fn an_engine_that_closes_its_end_is_gone() {
    let (engine, monitors) = UnixStream::pair().unwrap();
    let mut monitor = Command::new("sleep")
        .arg("600")
        .env("_OCI_SYNCPIPE", "0")
        .stdin(Stdio::from(OwnedFd::from(monitors)))
        .spawn()
        .unwrap();
    // The kernel shows a program's environment a moment after it runs.
    while std::fs::read(format!("/proc/{}/environ", monitor.id())).unwrap().is_empty() {
        std::thread::yield_now();
    }
    let watch = || Watch::default().monitor(Some(monitor.id() as i32));
    let before = watch();
    before.check().unwrap();
    assert_eq!(before.others.len(), 2);
    drop(engine);
    for watch in [before, watch()] {
        // Another test that starts a process has a copy of the engine's end for a moment.
        while watch.check().is_ok() {
            std::thread::yield_now();
        }
        assert!(watch.check().unwrap_err().message.starts_with("the engine has ended"));
    }
    monitor.kill().unwrap();
    monitor.wait().unwrap();
}

#[test]
fn a_process_that_is_no_monitor_is_not_watched_for_its_engine() {
    for number in ["", "x", "99", "-1", "2"] {
        let mut other = Command::new("sleep");
        let mut other = other.arg("600").env("_OCI_SYNCPIPE", number).stderr(Stdio::null()).spawn().unwrap();
        assert!(Watch::default().monitor(Some(other.id() as i32)).others.is_empty(), "{number}");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
