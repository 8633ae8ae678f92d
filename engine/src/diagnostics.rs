//! What a program does for a share, step by step, for the person who looks for a fault.
//!
//! | program | where it goes | how much |
//! |---|---|---|
//! | `fgpu-runtime` | the file of `--log`, in the form of `--log-format`; else standard error | `--debug`, else `log-level` |
//! | the shim | containerd's log | `log-level` |
//! | `fgpu-hook` | systemd's journal | `log-level` |
//! | `fgpu` | standard error, in the form of `--log-format` | `--debug`, else `log-level` |
//!
//! The library is tracing. A step is a span: its name stands before the messages of what happens in it, and
//! its end says how long it took. Nothing waits for a reader: a line that cannot be written at once is lost.
//! Refusals and warnings do not come this way: they are told whatever the level is.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::time::SystemTime;

use fgpu_spec::Error;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{FmtSpan, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Config, LogLevel};
use crate::events::{JOURNAL, journal};

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::OFF,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
        }
    }
}

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `time="…" level=debug msg="…"`, as runc and containerd write it.
    #[default]
    Text,
    /// An object with the same keys, as runc's `--log-format json` has it.
    Json,
}

/// Where lines go.
#[derive(Debug)]
pub enum Sink {
    /// Standard error.
    Stderr,
    /// A file that is open for appending, or a pipe that does not block.
    File(File),
    /// systemd's journal.
    Journal(UnixDatagram),
}

impl Sink {
    /// The node's journal, or standard error where it cannot be had.
    pub fn journal() -> Self {
        match UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket)) {
            Ok(socket) => Self::Journal(socket),
            Err(_) => Self::Stderr,
        }
    }
}

/// The level that a configuration says. One that cannot be read is told as an error, and says nothing here.
pub fn level(config: &Result<Config, Error>) -> LogLevel {
    config.as_ref().map_or(LogLevel::default(), |config| config.log_level)
}

/// Writes diagnostics from now on. Call it once in a process; a second call changes nothing.
pub fn start(level: LogLevel, format: Format, sink: Sink) {
    if level == LogLevel::Off {
        return;
    }
    let bare = matches!(sink, Sink::Journal(_));
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::from(level))
        .with_span_events(FmtSpan::CLOSE)
        .event_format(Lines { format, bare })
        .with_writer(Output(sink))
        .finish();
    let _ = tracing::subscriber::set_global_default(subscriber);
}

#[derive(Debug)]
struct Output(Sink);

/// One line on its way.
#[derive(Debug)]
struct Line<'a> {
    sink: &'a Sink,
    level: Level,
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { sink: &self.0, level: Level::INFO }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        Line { sink: &self.0, level: *metadata.level() }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Whether it is read changes nothing.
        let _ = match self.sink {
            Sink::Stderr => io::stderr().write_all(line),
            Sink::File(file) => (&mut &*file).write_all(line),
            Sink::Journal(socket) => {
                let entry = journal::message(priority(self.level), &String::from_utf8_lossy(line));
                socket.send_to(&entry, JOURNAL).map(drop)
            }
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// syslog(3)'s priority.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// How an event becomes a line.
struct Lines {
    format: Format,
    /// The message alone.
    bare: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = String::new();
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            message.push_str(span.name());
            let extensions = span.extensions();
            match extensions.get::<FormattedFields<N>>() {
                Some(fields) if !fields.is_empty() => write!(message, "({fields}): ")?,
                _ => message.push_str(": "),
            }
        }
        event.record(&mut Text(&mut message));
        // What an image or a container's name brings along cannot begin a line or move a terminal's cursor.
        let message = message.replace(char::is_control, "?");
        if self.bare {
            return writer.write_str(&message);
        }
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let time = humantime::format_rfc3339_seconds(SystemTime::now());
        let message = serde_json::Value::from(message);
        match self.format {
            Format::Text => writeln!(writer, "time=\"{time}\" level={level} msg={message}"),
            Format::Json => {
                writeln!(writer, "{{\"level\":\"{level}\",\"msg\":{message},\"time\":\"{time}\"}}")
            }
        }
    }
}

/// The message of an event, and its fields behind it.
struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value}"),
            name => write!(self.0, " {name}={value}"),
        };
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    /// What is written of a step in which a hostile name turns up.
    fn lines(level: LogLevel, format: Format) -> String {
        let mut file = tempfile::tempfile().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::from(level))
            .with_span_events(FmtSpan::CLOSE)
            .event_format(Lines { format, bare: false })
            .with_writer(Output(Sink::File(file.try_clone().unwrap())))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let name = "web\nlevel=error msg=\"forged\"\u{1b}[2J";
            let _step = tracing::debug_span!("prepare", container = %name).entered();
            tracing::info!(gpus = 1, "granted");
            tracing::debug!("its files are made");
        });
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_line_has_its_level_and_its_step_and_cannot_be_forged() {
        let text = lines(LogLevel::Debug, Format::Text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains(" level=info msg=\"prepare(container=web?level"), "{text}");
        assert!(lines[0].ends_with("?[2J): granted gpus=1\""), "{text}");
        assert!(lines[1].contains(" level=debug "), "{text}");
        assert!(lines[2].contains("close time.busy="), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn json_has_the_keys_of_runc() {
        let text = lines(LogLevel::Info, Format::Json);
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(line["level"], "info");
        assert!(line["msg"].as_str().unwrap().ends_with("granted gpus=1"), "{text}");
        assert!(humantime::parse_rfc3339(line["time"].as_str().unwrap()).is_ok(), "{text}");
    }

    #[test]
    fn a_level_leaves_out_what_is_below_it() {
        assert_eq!(lines(LogLevel::Off, Format::Text), "");
    }
}
