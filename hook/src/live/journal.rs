//! The system's log, for what a poststop hook has to say: its runtime has finished with the container, and engines drop
//! what the hook prints.

use std::os::unix::net::UnixDatagram;

use fgpu_spec::Error;

/// Where syslog daemons and systemd's journal listen (syslog(3)).
const SOCKET: &str = "/dev/log";

/// Facility daemon, severity error (RFC 3164).
const PRIORITY: u8 = 3 << 3 | 3;

/// Hands a message to the system's log if there is one and it does not make us wait.
pub(super) fn tell(error: &Error) {
    let message = format!("<{PRIORITY}>fgpu-hook: {error}");
    // Nobody is left to be told that nobody listens.
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(message.as_bytes(), SOCKET)
    });
}
