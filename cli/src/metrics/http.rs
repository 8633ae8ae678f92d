//! One HTTP request on a connected socket, and its answer: what systemd starts for each connection of
//! fgpu-metrics.socket (systemd.socket, `Accept=yes`).

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fgpu_spec::{Code, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::page::Format;

/// The most that is read of a request, bytes.
const LONGEST: usize = 8192;
/// The most header lines of a request.
const HEADERS: usize = 64;
/// How long a client may take for its request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads a request and answers it with what `page` makes.
///
/// # Errors
/// The client has sent no request in time, or does not take the answer.
pub(super) fn answer(
    input: impl Read + AsFd,
    mut output: impl Write,
    page: impl FnOnce(Format) -> Result<String, Error>,
) -> Result<(), Error> {
    let failed = |error: io::Error| Error::new(Code::Internal, format!("cannot answer a scrape: {error}"));
    let request = read(input).map_err(failed)?;
    let answer = respond(&request, page);
    match output.write_all(answer.as_bytes()).and_then(|()| output.flush()) {
        // The client is gone, which is its own affair.
        Err(error) if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            Err(failed(error))
        }
        _ => Ok(()),
    }
}

/// A request up to its empty line, or as much of it as there is room for.
fn read(mut input: impl Read + AsFd) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut request = vec![0; LONGEST];
    let mut length = 0;
    while length < LONGEST && !request[..length].windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match input.read(&mut request[length..])? {
            0 => break,
            read => length += read,
        }
    }
    request.truncate(length);
    Ok(request)
}

/// The whole answer to a request.
fn respond(request: &[u8], page: impl FnOnce(Format) -> Result<String, Error>) -> String {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let is_whole = matches!(parsed.parse(request), Ok(httparse::Status::Complete(_)));
    let (status, kind, body) = match (parsed.method, parsed.path) {
        (Some(method), Some(path)) if is_whole => {
            match (method, path.split('?').next().unwrap_or_default()) {
                ("GET" | "HEAD", "/metrics") => {
                    let format = format(parsed.headers);
                    match page(format) {
                        Ok(text) => ("200 OK", content_type(format), text),
                        Err(error) => ("503 Service Unavailable", PLAIN, format!("{error}\n")),
                    }
                }
                ("GET" | "HEAD", _) => ("404 Not Found", PLAIN, "The metrics are at /metrics.\n".to_owned()),
                _ => ("405 Method Not Allowed", PLAIN, "Metrics can be read only.\n".to_owned()),
            }
        }
        _ => ("400 Bad Request", PLAIN, "This is no HTTP request.\n".to_owned()),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    if status.starts_with("405") {
        answer += "Allow: GET, HEAD\r\n";
    }
    let body = if parsed.method == Some("HEAD") { "" } else { &body };
    // A String takes all that is written to it.
    let _ = write!(answer, "\r\n{body}");
    answer
}

fn content_type(format: Format) -> &'static str {
    match format {
        Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        Format::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
    }
}

/// OpenMetrics where the client says that it takes this version of it, else text.
fn format(headers: &[httparse::Header<'_>]) -> Format {
    let accepts = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("accept");
    let takes = |header: &httparse::Header<'_>| {
        let value = String::from_utf8_lossy(header.value).to_ascii_lowercase();
        value.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_open = parts.next() == Some("application/openmetrics-text");
            is_open
                && parts.all(|part| match part.split_once('=') {
                    Some(("version", version)) => version.trim_matches('"') == "1.0.0",
                    Some(("q", weight)) => weight.parse::<f32>().is_ok_and(|weight| weight > 0.0),
                    _ => true,
                })
        })
    };
    if headers.iter().filter(accepts).any(takes) { Format::Open } else { Format::Text }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn ask(request: &str) -> String {
        respond(request.as_bytes(), |format| Ok(format!("{format:?}\n")))
    }

    #[test]
    fn a_scrape_gets_the_format_that_it_asks_for() {
        let plain = ask("GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n");
        assert_eq!(
            plain,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 5\r\n\
             Connection: close\r\n\r\nText\n"
        );
        let with = |accept: &str| ask(&format!("GET /metrics?x HTTP/1.1\r\naccept: {accept}\r\n\r\n"));
        // What Prometheus 2.53 and 3 send.
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let newer = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3";
        for accept in [prometheus, newer, "application/openmetrics-text"] {
            assert!(with(accept).ends_with("\r\n\r\nOpen\n"), "{accept}");
        }
        for accept in
            ["*/*", "application/openmetrics-text;version=2.0.0", "application/openmetrics-text;q=0"]
        {
            assert!(with(accept).ends_with("\r\n\r\nText\n"), "{accept}");
        }
    }

    #[test]
    fn anything_else_is_told_so() {
        let first = |request: &str| ask(request).lines().next().unwrap_or_default().to_owned();
        assert_eq!(first("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(first("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(first("GET /metrics HTTP/1.1\r\nHost"), "HTTP/1.1 400 Bad Request");
        assert_eq!(first("\u{16}\u{3}\u{1}"), "HTTP/1.1 400 Bad Request");
        assert_eq!(first(""), "HTTP/1.1 400 Bad Request");
        assert!(
            ask("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("Content-Length: 5\r\nConnection: close\r\n\r\n")
        );
        let many: String = (0..200).map(|number| format!("a{number}: b\r\n")).collect();
        assert_eq!(first(&format!("GET /metrics HTTP/1.1\r\n{many}\r\n")), "HTTP/1.1 400 Bad Request");
        let broken =
            respond(b"GET /metrics HTTP/1.1\r\n\r\n", |_| Err(Error::new(Code::StateCorrupt, "torn")));
        assert!(broken.starts_with("HTTP/1.1 503 ") && broken.ends_with("state-corrupt: torn\n"), "{broken}");
    }

    #[test]
    fn a_request_comes_in_pieces_and_has_an_end() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"GET /metrics HT").unwrap();
        let served = std::thread::spawn(move || {
            answer(server.try_clone().unwrap(), server, |_| Ok("page".to_owned())).unwrap();
        });
        client.write_all(b"TP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\r\n\r\npage"), "{text}");
        served.join().unwrap();

        let (mut client, server) = UnixStream::pair().unwrap();
        let flood = std::thread::spawn(move || client.write_all(&[b'x'; 1 << 20]));
        let mut text = Vec::new();
        answer(server, &mut text, |_| Ok("page".to_owned())).unwrap();
        assert!(text.starts_with(b"HTTP/1.1 400 "));
        assert!(flood.join().unwrap().is_err(), "nobody reads all that");

        let (client, server) = UnixStream::pair().unwrap();
        drop(client);
        answer(server.try_clone().unwrap(), server, |_| Ok("page".to_owned())).unwrap();
    }
}
