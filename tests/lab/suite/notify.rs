//! What a service manager hears of a container in a unit of its own, by `NOTIFY_SOCKET` (sd_notify(3)).

use std::fs;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fgpu_lab::bundle::{bundle, runtimes};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt, sockopt,
};

pub(crate) const TESTS: &[Test] =
    &[Test::once("notify::a_container_says_that_it_is_ready", a_container_says_that_it_is_ready)];

/// Sends a notification (sd_notify(3)), and waits until it has been handed on.
const NOTIFY: &str = r#"socket(my $s, 1, 2, 0) or die; send($s, "READY=1", 0, pack("S a*", 1, $ENV{NOTIFY_SOCKET})) or die; sleep 1"#;

/// What a service manager gets of a container that says it is ready: each variable, and whether the main
/// process of the unit sent it. `run` is in the foreground, as in a unit.
#[track_caller]
fn notified(program: &str, share: bool) -> Vec<(String, bool)> {
    let (socket, main) = ("/run/lab/notify.sock", "/run/lab/notify.main");
    let _ = fs::remove_file(socket);
    let manager = UnixDatagram::bind(socket).expect("it can be bound");
    manager.set_read_timeout(Some(Duration::from_millis(50))).expect("it is a socket");
    setsockopt(&manager, sockopt::PassCred, &true).expect("it is a Unix socket");
    let script = format!(r#"echo $$ >{main}; NOTIFY_SOCKET={socket} exec "$@""#);
    let container = bundle("sh", "debian13").options(&["-c", &script, "sh", program]);
    let container = if share { container.annotation("fgpu/fraction", "0.25") } else { container };
    // runc waits until the manager has closed what came with BARRIER=1.
    let ended = AtomicBool::new(false);
    let received = std::thread::scope(|scope| {
        let manager = scope.spawn(|| receive(&manager, &ended));
        container.run(&["perl", "-e", NOTIFY]).ok();
        ended.store(true, Ordering::Relaxed);
        manager.join().expect("it receives")
    });
    let main: i32 = fs::read_to_string(main).unwrap_or_default().trim().parse().expect("a pid");
    received.into_iter().map(|(name, sender)| (name, sender == Some(main))).collect()
}

/// The variables that come, each with its sender, until nothing more does after the end.
fn receive(manager: &UnixDatagram, ended: &AtomicBool) -> Vec<(String, Option<i32>)> {
    let mut told = Vec::new();
    loop {
        let last = ended.load(Ordering::Relaxed);
        let (mut text, mut space) = ([0; 512], cmsg_space!(UnixCredentials, [RawFd; 2]));
        let mut parts = [std::io::IoSliceMut::new(&mut text)];
        let received =
            recvmsg::<UnixAddr>(manager.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty());
        let Ok(message) = received else {
            if last {
                return told;
            }
            continue;
        };
        let mut sender = None;
        for one in message.cmsgs().expect("they fit") {
            match one {
                ControlMessageOwned::ScmCredentials(credentials) => sender = Some(credentials.pid()),
                ControlMessageOwned::ScmRights(descriptors) => {
                    for descriptor in descriptors {
                        nix::unistd::close(descriptor).expect("it came just now");
                    }
                }
                _ => {}
            }
        }
        let length = message.bytes;
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        let variables = text.lines().filter_map(|line| line.split_once('='));
        told.extend(variables.map(|(name, _)| (name.to_owned(), sender)));
    }
}

/// docs/troubleshooting.md: with a share the runtime is our child, so it is not the main process that sends.
fn a_container_says_that_it_is_ready() {
    for real in runtimes() {
        let _configured = node::configure(&format!("runtimes = [{real:?}]"));
        let before = notified(real, false);
        assert!(before.iter().any(|(name, _)| name == "READY"), "{real}: {before:?}");
        assert_eq!(notified("fgpu-runtime", false), before, "{real} without a share");
        let shared = notified("fgpu-runtime", true);
        let names = |told: &[(String, bool)]| told.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&shared), names(&before), "{real} with a share");
        assert!(shared.iter().all(|(_, by_main)| !by_main), "{real} with a share: {shared:?}");
    }
}
