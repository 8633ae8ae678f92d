//! The kubelet's `:authority`.
//!
//! The kubelet connects to a plugin's registration socket by its path, and grpc-go makes `:authority` of that
//! (`%2Fvar%2Flib%2F…`, `dial` in pkg/kubelet/pluginmanager/operationexecutor). h2 takes it for a protocol error:
//! an authority has no percent sign (RFC 3986, 3.2). So what the kubelet sends passes through here, and each
//! block of headers (RFC 9113, 6.2) is written anew with `localhost` in that place.

use std::io;

use loona_hpack::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::UnixStream;
use tracing::debug;

/// What a client of HTTP/2 sends first.
const PREFACE: usize = 24;
/// The head of a frame: length (3 bytes), type, flags, stream (4 bytes).
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Largest frame that an HTTP/2 client may send unasked.
const LARGEST: usize = 1 << 14;

/// The same connection, as a server sees it whose client names itself well.
pub fn mended(connection: UnixStream) -> DuplexStream {
    let (ours, theirs) = duplex(LARGEST);
    tokio::spawn(async move {
        let (mut from, mut to) = connection.into_split();
        let (mut back, forth) = tokio::io::split(ours);
        let forth = async {
            match pass(&mut from, forth).await {
                // The server ends the connection when it has answered what came.
                Ok(()) => std::future::pending().await,
                Err(error) => error,
            }
        };
        let ended = tokio::select! {
            error = forth => Err(error),
            ended = tokio::io::copy(&mut back, &mut to) => ended,
        };
        // Both sides are closed now.
        if let Err(error) = ended {
            debug!("a connection of the kubelet's ended: {error}");
        }
    });
    theirs
}

/// Copies frames, until there are no more.
async fn pass(from: &mut (impl AsyncRead + Unpin), mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let (mut decoder, mut encoder) = (Decoder::new(), Encoder::new());
    let mut head = [0; HEAD];
    while from.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if length > LARGEST {
            return Err(wrong("a frame is too long"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        if head[3] == HEADERS {
            payload = rewrite(&mut decoder, &mut encoder, head[4], &payload)?;
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
            head[..3].copy_from_slice(&length[1..]);
            head[4] &= END_STREAM | END_HEADERS;
        }
        to.write_all(&head).await?;
        to.write_all(&payload).await?;
    }
    to.shutdown().await
}

/// A block of headers, without padding and priority.
fn rewrite(
    decoder: &mut Decoder<'_>,
    encoder: &mut Encoder<'_>,
    flags: u8,
    payload: &[u8],
) -> io::Result<Vec<u8>> {
    if flags & END_HEADERS == 0 {
        return Err(wrong("its headers are in several frames"));
    }
    let short = || wrong("a frame of headers is too short");
    let (padding, rest) = match flags & PADDED {
        0 => (0, payload),
        _ => payload.split_first().map(|(padding, rest)| (usize::from(*padding), rest)).ok_or_else(short)?,
    };
    let rest = rest.get(if flags & PRIORITY == 0 { 0 } else { 5 }..).ok_or_else(short)?;
    let block = rest.len().checked_sub(padding).and_then(|end| rest.get(..end)).ok_or_else(short)?;
    let mut headers = decoder.decode(block).map_err(|_| wrong("its headers cannot be read"))?;
    if let Some((_, authority)) = headers.iter_mut().find(|(name, _)| name == b":authority") {
        *authority = b"localhost".to_vec();
    }
    Ok(encoder.encode(headers.iter().map(|(name, value)| (&name[..], &value[..]))))
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATH: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.fgpu.dev-reg.sock";

    fn headers(authority: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all: [(&[u8], &[u8]); 4] =
            [(b":method", b"POST"), (b":authority", authority), (b":path", b"/x/Y"), (b"te", b"trailers")];
        all.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    #[test]
    fn the_authority_alone_is_another_one() {
        let (mut theirs, mut decoder) = (Encoder::new(), Decoder::new());
        let (mut ours, mut server) = (Encoder::new(), Decoder::new());
        // The second block refers to what the first one put into the tables.
        for flags in [END_HEADERS, END_HEADERS | END_STREAM, END_HEADERS | PADDED | PRIORITY] {
            let sent = headers(PATH);
            let mut block = theirs.encode(sent.iter().map(|(name, value)| (&name[..], &value[..])));
            if flags & PADDED != 0 {
                block = [&[3, 0, 0, 0, 0, 9][..], &block, &[0; 3]].concat();
            }
            let passed = rewrite(&mut decoder, &mut ours, flags, &block).unwrap();
            assert_eq!(server.decode(&passed).unwrap(), headers(b"localhost"));
        }
    }

    /// A connection of a client, and the server's end of it.
    fn connection() -> (UnixStream, DuplexStream) {
        let (client, server) = UnixStream::pair().unwrap();
        (client, mended(server))
    }

    async fn is_at_its_end(stream: &mut (impl AsyncRead + Unpin)) -> bool {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut [0; 64])).await;
        // What the peer had not read yet makes a reset of it.
        matches!(read, Ok(Ok(0) | Err(_)))
    }

    #[tokio::test]
    async fn a_frame_that_is_none_ends_both_sides() {
        let (mut client, mut server) = connection();
        client.write_all(&[0; PREFACE]).await.unwrap();
        client.write_all(&[0xff; HEAD]).await.unwrap();
        server.read_exact(&mut [0; PREFACE]).await.unwrap();
        assert!(is_at_its_end(&mut server).await, "the server waits for more frames");
        assert!(is_at_its_end(&mut client).await, "the client waits for an answer");
    }

    #[tokio::test]
    async fn a_server_that_closes_ends_the_client_and_a_client_that_closes_the_server() {
        let (mut client, mut server) = connection();
        client.write_all(&[0; PREFACE]).await.unwrap();
        server.read_exact(&mut [0; PREFACE]).await.unwrap();
        drop(server);
        assert!(is_at_its_end(&mut client).await, "the client waits for an answer");
        let (mut client, mut server) = connection();
        client.write_all(&[0; PREFACE]).await.unwrap();
        client.shutdown().await.unwrap();
        server.read_exact(&mut [0; PREFACE]).await.unwrap();
        assert!(is_at_its_end(&mut server).await, "the server waits for more frames");
        server.write_all(b"answer").await.unwrap();
        client.read_exact(&mut [0; 6]).await.unwrap();
    }

    #[test]
    fn frames_that_are_none_are_refused() {
        let (mut decoder, mut encoder) = (Decoder::new(), Encoder::new());
        for (flags, payload) in [
            (0, &[0x82][..]),
            (END_HEADERS | PADDED, &[]),
            (END_HEADERS | PADDED, &[9, 0x82]),
            (END_HEADERS | PRIORITY, &[0; 4]),
        ] {
            assert!(rewrite(&mut decoder, &mut encoder, flags, payload).is_err(), "{flags} {payload:?}");
        }
    }
}
