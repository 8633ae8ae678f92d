//! `fgpu status --watch` and `fgpu top`: the status, drawn again and again.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use fgpu_spec::{Code, Error};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::node::Node;
use crate::output::Output;
use crate::screen::Look;

use super::{Order, look, text};

/// A screen of its own, no cursor on it, and lines that are too long end at its edge; and back (xterm, "Alternate Screen
/// Buffer", DECTCEM, DECAWM).
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// To the first column of the first line; and: forget the rest of the line, of the screen.
const HOME: &str = "\u{1b}[H";
const LINE_END: &str = "\u{1b}[K\r\n";
const SCREEN_END: &str = "\u{1b}[J";

/// Reads an interval: seconds, at least a tenth.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no number of seconds between 0.1 and 86400");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.1..=86400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

/// Draws the status every `interval`, until a signal ends it. On a terminal it is drawn over the last one, elsewhere
/// below it.
///
/// # Errors
/// As [`super::run`] says at the first look; later ones are drawn in place of the status.
pub(crate) fn watch(node: &Node, order: Order, interval: Duration) -> Result<Output, Error> {
    let failed = |error: io::Error| Error::new(Code::Internal, format!("cannot watch: {error}"));
    let mut before = BTreeMap::new();
    let mut looked = Ok(look(node, &mut before)?);
    let signals = Signals::new().map_err(failed)?;
    let mut screen = Screen::new(io::stdout());
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
        match signals.wait(interval).map_err(failed)? {
            Woken::Ended => return Ok(Output::default()),
            // The same once more: how much was used in the moments since would say little.
            Woken::Resized => {}
            Woken::Time => looked = look(node, &mut before),
        }
    }
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    Time,
    Resized,
    Ended,
}

/// The signals that end it, and the one for a terminal of another size.
struct Signals(SignalFd);

impl Signals {
    fn new() -> io::Result<Self> {
        let all = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGWINCH];
        let set: SigSet = all.into_iter().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Waits for the next of them, or as long as that.
    fn wait(&self, interval: Duration) -> io::Result<Woken> {
        let timeout = PollTimeout::try_from(interval).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let resized = Signal::SIGWINCH as u32;
        Ok(match self.0.read_signal()? {
            None => Woken::Time,
            Some(signal) if signal.ssi_signo == resized => Woken::Resized,
            Some(_) => Woken::Ended,
        })
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
        for line in &lines[..shown] {
            text.push_str(line);
            text.push_str(LINE_END);
        }
        if shown < lines.len() {
            text.push_str(&format!("({} more lines)", lines.len() - shown));
            text.push_str(LINE_END);
        }
        text.push_str(SCREEN_END);
        self.to.write_all(text.as_bytes())?;
        self.to.flush()
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        if self.entered {
            // A terminal that is gone needs nothing.
            let _ = self.to.write_all(LEAVE.as_bytes()).and_then(|()| self.to.flush());
        }
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
        let line = |text: &str| format!("{text}{LINE_END}");
        let expected = [ENTER, HOME, &line("a"), &line("b"), SCREEN_END, HOME, &line("c"), SCREEN_END, LEAVE];
        assert_eq!(drawn(&["a\nb\n", "c\n"], &look), expected.concat());
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let look = Look { width: Some(80), height: Some(4), ..Look::PLAIN };
        let text = drawn(&["1\n2\n3\n4\n5\n"], &look);
        assert!(text.contains("2\u{1b}[K\r\n(3 more lines)\u{1b}[K\r\n"), "{text:?}");
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
