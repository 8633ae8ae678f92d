//! `fgpu status --watch` and `fgpu top`: the status, drawn again and again.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fgpu_spec::{Code, Error};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::node::Node;
use crate::output::Output;
use crate::screen::Look;

use super::{Order, look, text};

/// A screen of its own, no cursor on it, and lines that are too long end at its edge; and back (xterm,
/// "Alternate Screen Buffer", DECTCEM, DECAWM).
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// To the first column of the first line; and: forget the line, the rest of the screen.
const HOME: &str = "\u{1b}[H";
/// Before the line's text: after a line that is as wide as the terminal the cursor stays on its last
/// character, and this would take it away.
const LINE_START: &str = "\u{1b}[K";
const LINE_END: &str = "\r\n";
const SCREEN_END: &str = "\u{1b}[J";

/// Reads an interval: seconds, at least a tenth.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no number of seconds between 0.1 and 86400");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.1..=86400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

/// Draws the status every `interval`, until a signal or the key `q` ends it. On a terminal it is drawn over
/// the last one, elsewhere below it.
///
/// # Errors
/// As [`super::run`] says at the first look; later ones are drawn in place of the status.
pub(crate) fn watch(node: &Node, order: Order, interval: Duration) -> Result<Output, Error> {
    let failed = |error: io::Error| Error::new(Code::Internal, format!("cannot watch: {error}"));
    let mut before = BTreeMap::new();
    let mut looked = Ok(look(node, node.inventory(), &mut before)?);
    let signals = Signals::new().map_err(failed)?;
    let mut screen = Screen::new(io::stdout());
    let mut keys = Look::of_stdout().height.and_then(|_| Keys::new());
    loop {
        let layout = Look::of_stdout();
        let frame = match &looked {
            Ok((status, failure)) => {
                let failure = failure.as_ref().map(|error| format!("\n{error}\n")).unwrap_or_default();
                text::text(status, order, &layout) + &failure
            }
            Err(error) => format!("{error}\n"),
        };
        match screen.draw(&frame, &layout) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Output::default()),
            drawn => drawn.map_err(failed)?,
        }
        match signals.wait(interval, &mut keys).map_err(failed)? {
            Woken::Ended => return Ok(Output::default()),
            Woken::Stopped => {
                screen.leave();
                keys.take();
                // Until the user says `fg`.
                raise(Signal::SIGSTOP).map_err(|errno| failed(errno.into()))?;
                keys = Keys::new();
            }
            // The same once more: how much was used in the moments since would say little.
            Woken::Resized => {}
            Woken::Time => looked = look(node, node.inventory(), &mut before),
        }
    }
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    Time,
    Resized,
    Stopped,
    Ended,
}

/// The signals that end it, that stop it (Ctrl-Z), and the one for a terminal of another size.
struct Signals(SignalFd);

impl Signals {
    fn new() -> io::Result<Self> {
        let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let all = ends.into_iter().chain([Signal::SIGTSTP, Signal::SIGWINCH]);
        let set: SigSet = all.collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Waits for the next of them or a key, or as long as that.
    fn wait(&self, interval: Duration, keys: &mut Option<Keys>) -> io::Result<Woken> {
        let end = Instant::now() + interval;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let stdin = io::stdin();
            let mut fds = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            fds.extend(keys.as_ref().map(|_| PollFd::new(stdin.as_fd(), PollFlags::POLLIN)));
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let typed = fds.get(1).and_then(PollFd::any).unwrap_or(false);
            const RESIZED: u32 = Signal::SIGWINCH as u32;
            const STOPPED: u32 = Signal::SIGTSTP as u32;
            match self.0.read_signal()?.map(|signal| signal.ssi_signo) {
                Some(RESIZED) => return Ok(Woken::Resized),
                Some(STOPPED) => return Ok(Woken::Stopped),
                Some(_) => return Ok(Woken::Ended),
                None => {}
            }
            match typed.then(Keys::read) {
                Some(Some(true)) => return Ok(Woken::Ended),
                // A terminal that is gone has no keys.
                Some(None) => drop(keys.take()),
                _ => {}
            }
            if end <= Instant::now() {
                return Ok(Woken::Time);
            }
        }
    }
}

/// The terminal's keys, each as it is pressed and none of them shown. Dropped, the terminal is as it was.
struct Keys(Termios);

impl Keys {
    /// None where standard input is no terminal, or another job's.
    fn new() -> Option<Self> {
        let stdin = io::stdin();
        if tcgetpgrp(&stdin).ok()? != getpgrp() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut now = before.clone();
        // Ctrl-C and Ctrl-Z stay signals.
        now.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        // Ctrl-C would throw away what restores the screen, if that was written first (termios(3)).
        now.local_flags.insert(LocalFlags::NOFLSH);
        tcsetattr(&stdin, SetArg::TCSADRAIN, &now).ok()?;
        Some(Self(before))
    }

    /// Whether one of the keys that wait to be read ends it; none if there is no terminal any more.
    fn read() -> Option<bool> {
        let mut keys = [0; 64];
        let count = nix::unistd::read(io::stdin(), &mut keys).ok().filter(|count| *count > 0)?;
        Some(keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// Where it is drawn. Dropped, the terminal is as it was.
struct Screen<W: Write> {
    to: W,
    entered: bool,
    drawn: bool,
}

impl<W: Write> Screen<W> {
    fn new(to: W) -> Self {
        Self { to, entered: false, drawn: false }
    }

    fn draw(&mut self, frame: &str, look: &Look) -> io::Result<()> {
        let Some(height) = look.height else {
            let gap = if self.drawn { "\n" } else { "" };
            self.drawn = true;
            self.to.write_all(format!("{gap}{frame}").as_bytes())?;
            return self.to.flush();
        };
        let mut text = String::from(if self.entered { "" } else { ENTER });
        self.entered = true;
        text.push_str(HOME);
        let lines: Vec<&str> = frame.lines().collect();
        // One more line would move the screen.
        let room = height.saturating_sub(1);
        let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
        let more = (shown < lines.len()).then(|| format!("({} more lines)", lines.len() - shown));
        for line in lines[..shown].iter().copied().chain(more.as_deref()) {
            text.extend([LINE_START, line, LINE_END]);
        }
        text.push_str(SCREEN_END);
        self.to.write_all(text.as_bytes())?;
        self.to.flush()
    }
}

impl<W: Write> Screen<W> {
    /// Gives the terminal back as it was; the next frame takes it again.
    fn leave(&mut self) {
        if std::mem::take(&mut self.entered) {
            // A terminal that is gone needs nothing.
            let _ = self.to.write_all(LEAVE.as_bytes()).and_then(|()| self.to.flush());
        }
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(frames: &[&str], look: &Look) -> String {
        let mut bytes = Vec::new();
        let mut screen = Screen::new(&mut bytes);
        frames.iter().for_each(|frame| screen.draw(frame, look).unwrap());
        drop(screen);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_terminal_is_drawn_over_and_left_as_it_was() {
        let look = Look { width: Some(80), height: Some(24), ..Look::PLAIN };
        let line = |text: &str| format!("{LINE_START}{text}{LINE_END}");
        let expected = [ENTER, HOME, &line("a"), &line("b"), SCREEN_END, HOME, &line("c"), SCREEN_END, LEAVE];
        assert_eq!(drawn(&["a\nb\n", "c\n"], &look), expected.concat());
    }

    /// The first line of a terminal that was written to (ECMA-48, EL erases from the cursor on; xterm,
    /// without DECAWM the cursor stays on the last column).
    fn first_line(bytes: &str, columns: usize) -> String {
        let (mut line, mut at) = (vec![' '; columns], 0);
        let text = bytes.split(HOME).last().unwrap();
        let mut chars = text.split("\r\n").next().unwrap().chars();
        while let Some(char) = chars.next() {
            if char == '\u{1b}' {
                assert_eq!((chars.next(), chars.next()), (Some('['), Some('K')), "{text:?}");
                line[at..].fill(' ');
            } else {
                line[at] = char;
                at = (at + 1).min(columns - 1);
            }
        }
        line.into_iter().collect()
    }

    #[test]
    fn a_line_as_wide_as_the_terminal_keeps_its_last_character() {
        let look = Look { width: Some(5), height: Some(9), ..Look::PLAIN };
        assert_eq!(first_line(&drawn(&["SINCE\n"], &look), 5), "SINCE");
        assert_eq!(first_line(&drawn(&["SINCE\n", "12s\n"], &look), 5), "12s  ");
    }

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let look = Look { width: Some(80), height: Some(4), ..Look::PLAIN };
        let text = drawn(&["1\n2\n3\n4\n5\n"], &look);
        assert!(text.contains("2\r\n\u{1b}[K(3 more lines)\r\n"), "{text:?}");
        assert_eq!(drawn(&["1\n2\n3\n"], &look).matches("more").count(), 0);
        drawn(&["1\n2\n"], &Look { height: Some(1), ..look });
    }

    #[test]
    fn elsewhere_each_is_below_the_last() {
        assert_eq!(drawn(&["a\n", "b\n"], &Look::PLAIN), "a\n\nb\n");
    }

    #[test]
    fn intervals() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "NaN", "inf", "0.01", "1e9", "2s"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
