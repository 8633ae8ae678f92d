//! The command on a terminal: a pseudo-terminal of a given size.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A node without a driver: `status` says so, and shows what there is.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        let at = |name: &str| node.0.path().join(name);
        let text = format!("state-dir = {:?}\nlog-dir = {:?}\n", at("state"), at("log"));
        std::fs::write(at("config.toml"), text).unwrap();
        std::fs::create_dir(at("state")).unwrap();
        node
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        command.arg("--config").arg(self.0.path().join("config.toml")).args(arguments);
        command.env_clear().env("LANG", "C.UTF-8").env("TERM", "xterm");
        command
    }
}

/// A terminal with the program on it.
struct Terminal {
    screen: File,
    child: Child,
}

impl Terminal {
    fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let terminal = File::options().read(true).write(true).open(name).unwrap();
        let child = command.stdin(terminal.try_clone().unwrap()).stdout(terminal).spawn().unwrap();
        Self { screen: File::from(controller), child }
    }

    /// What appears until `words` do.
    fn read_until(&mut self, words: &str) -> String {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains(words) {
            // EIO is a terminal's way to say that nobody is there any more.
            let count = self.screen.read(&mut buffer).unwrap_or(0);
            assert!(count > 0, "ended without {words:?}: {text:?}");
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        text
    }

    /// What appears until the program ends.
    fn read_all(mut self) -> (String, Option<i32>) {
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = self.screen.read(&mut buffer) {
            text.extend_from_slice(&buffer[..count]);
        }
        (String::from_utf8_lossy(&text).into_owned(), self.child.wait().unwrap().code())
    }
}

#[test]
fn colours_are_for_terminals_whose_users_want_them() {
    let node = Node::new();
    let on = |variable: Option<(&str, &str)>| {
        let mut command = node.command(&["status"]);
        command.envs(variable);
        Terminal::start(command, 80, 24).read_all().0
    };
    assert!(on(None).contains("\u{1b}[1m0 GPUs"), "{:?}", on(None));
    for no in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        assert!(on(Some(no)).starts_with("0 GPUs"), "{no:?}");
    }
    assert!(on(Some(("NO_COLOR", ""))).contains('\u{1b}'), "an empty NO_COLOR is none");
    let piped = node.command(&["status"]).output().unwrap();
    assert!(!piped.stdout.contains(&0x1b));
}

#[test]
fn a_watch_ends_with_the_terminal_as_it_was() {
    let node = Node::new();
    let mut terminal = Terminal::start(node.command(&["status", "--watch", "60"]), 80, 24);
    let first = terminal.read_until("No container holds a share.");
    assert!(first.contains("\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l"), "{first:?}");
    let pid = rustix::process::Pid::from_child(&terminal.child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (rest, code) = terminal.read_all();
    assert!(rest.ends_with("\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l"), "{rest:?}");
    assert_eq!(code, Some(0));
}

/// A watch whose terminal is its controlling one, as in a shell's foreground.
fn watch(node: &Node, arguments: &[&str]) -> Terminal {
    let inner = node.command(arguments);
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).arg(inner.get_program()).args(inner.get_args());
    command.env_clear().env("LANG", "C.UTF-8").env("TERM", "xterm").env("PATH", "/usr/bin:/bin");
    command.process_group(0);
    let mut terminal = Terminal::start(command, 80, 24);
    terminal.read_until("No container holds a share.");
    terminal
}

/// Ctrl-Z, and `fg`: in between the shell has its terminal as it was, and the watch goes on afterwards.
#[test]
fn a_watch_that_is_stopped_leaves_the_terminal_and_takes_it_again() {
    let node = Node::new();
    for arguments in [&["top", "-d", "60"][..], &["status", "--watch", "60"]] {
        let inner = node.command(arguments);
        // What a person's shell does: the watch is a job in the foreground. 147: SIGSTOP, which follows once
        // the screen is left.
        let script = r#"exec 2>&1; set -m; "$@"; echo "stopped $?"; read line; fg; echo "ended $?""#;
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "bash", "-c", script, "bash"]);
        command.arg(inner.get_program()).args(inner.get_args());
        command.env_clear().env("LANG", "C.UTF-8").env("TERM", "xterm").env("PATH", "/usr/bin:/bin");
        command.process_group(0);
        let mut terminal = Terminal::start(command, 80, 24);
        let first = terminal.read_until("No container holds a share.");
        assert!(first.contains("\u{1b}[?1049h") && !is_usual(&terminal.screen), "{first:?}");
        terminal.screen.write_all(b"\x1a").unwrap();
        let stopped = terminal.read_until("stopped 147");
        assert!(stopped.contains("\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l"), "{arguments:?}: {stopped:?}");
        assert!(is_usual(&terminal.screen), "{arguments:?}");
        terminal.screen.write_all(b"\n").unwrap();
        let again = terminal.read_until("No container holds a share.");
        assert!(again.contains("\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l"), "{arguments:?}: {again:?}");
        assert!(!is_usual(&terminal.screen), "{arguments:?}");
        terminal.screen.write_all(b"q").unwrap();
        let screen = terminal.screen.try_clone().unwrap();
        let (rest, code) = terminal.read_all();
        assert!(rest.contains("\u{1b}[?1049l") && rest.trim_end().ends_with("ended 0"), "{rest:?}");
        assert_eq!(code, Some(0));
        assert!(is_usual(&screen), "{arguments:?}");
    }
}

/// Whether keys are shown and come by whole lines, as a shell leaves a terminal.
fn is_usual(screen: &File) -> bool {
    tcgetattr(screen).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
}

#[test]
fn q_ends_a_watch_and_the_terminal_is_as_it_was() {
    let node = Node::new();
    for arguments in [&["top", "-d", "60"][..], &["status", "--watch", "60"]] {
        // q, and Ctrl-C, Ctrl-\\ that the terminal makes signals of.
        for key in ["q", "xQ", "\u{3}", "\u{1c}"] {
            let mut terminal = watch(&node, arguments);
            assert!(!is_usual(&terminal.screen), "{arguments:?}");
            let screen = terminal.screen.try_clone().unwrap();
            terminal.screen.write_all(key.as_bytes()).unwrap();
            let (rest, code) = terminal.read_all();
            assert!(rest.ends_with("\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l"), "{key:?}: {rest:?}");
            assert_eq!(code, Some(0), "{key:?}");
            assert!(is_usual(&screen), "{key:?}");
        }
    }
}
