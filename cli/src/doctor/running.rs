//! The engines as they run: what they have read of their configuration.

use fgpu_allocator::proc::parse_stat;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;

use super::Diagnosis;
use super::node::Node;
use crate::setup::PATIENCE;

/// Where Docker listens unless that was changed; then it is not asked.
const DOCKER: [&str; 2] = ["/run/docker.sock", "/var/run/docker.sock"];
/// The largest answer that is read, bytes.
const LARGEST: u64 = 8 << 20;

/// Docker takes its runtimes from daemon.json when it starts, and at a reload.
pub(super) fn docker(node: &Node, diagnosis: &mut Diagnosis) {
    let Some(socket) = DOCKER.iter().map(|path| node.place(path)).find(|path| path.exists()) else { return };
    let runtimes = match info(socket) {
        Ok(info) => info["Runtimes"].as_object().cloned().unwrap_or_default(),
        // Only members of a group may ask.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
        Err(error) => {
            let mend = ["systemctl restart docker", "journalctl -u docker"];
            diagnosis.error("engine-not-answering", format!("Docker does not answer: {error}"), &mend);
            return;
        }
    };
    if !runtimes.contains_key("fgpu") {
        diagnosis.error(
            "engine-not-restarted",
            "Docker runs without the runtime fgpu: it has not read /etc/docker/daemon.json since that has it",
            &["systemctl reload docker"],
        );
    }
}

/// What Docker says of itself (Docker Engine API, "Get system information"). Asked by a thread, which may be
/// left behind: even to connect can take for ever.
fn info(socket: PathBuf) -> io::Result<serde_json::Value> {
    let (sender, answer) = mpsc::sync_channel(1);
    let ask = move || -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"GET /info HTTP/1.0\r\nHost: docker\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(LARGEST).read_to_end(&mut answer)?;
        Ok(answer)
    };
    std::thread::spawn(move || sender.send(ask()));
    let silence = |_| io::Error::from(io::ErrorKind::TimedOut);
    let answer = answer.recv_timeout(PATIENCE).map_err(silence)??;
    let start = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 4);
    Ok(serde_json::from_slice(&answer[start..])?)
}

/// containerd reads its configuration when it starts and never again.
pub(super) fn containerd(node: &Node, diagnosis: &mut Diagnosis) {
    let path = "/etc/containerd/config.toml";
    let changed = std::fs::metadata(node.place(path)).ok().and_then(|file| u64::try_from(file.mtime()).ok());
    if let Some((started, changed)) = started(node, "containerd").zip(changed)
        // Both are rounded.
        && changed > started + 1
    {
        diagnosis.error(
            "engine-not-restarted",
            format!("containerd runs with what was in {path} before it was last changed"),
            &["systemctl restart containerd"],
        );
    }
}

/// An engine without a running process. Docker may be started by the first connection (docker.socket).
pub(super) fn stopped(node: &Node, diagnosis: &mut Diagnosis, title: &str, program: &str) {
    let socket = program == "dockerd" && DOCKER.iter().any(|path| node.place(path).exists());
    let mut pids = node.names("/proc");
    pids.retain(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let is_it =
        |pid: &String| node.text(&format!("/proc/{pid}/comm")).is_some_and(|name| name.trim_end() == program);
    // Where no process can be seen, this cannot be told.
    if socket || pids.is_empty() || pids.iter().any(is_it) {
        return;
    }
    let service = if program == "dockerd" { "docker" } else { program };
    let mend = [format!("systemctl start {service}"), format!("journalctl -u {service} -n 20")];
    diagnosis.error("engine-stopped", format!("{title} does not run"), &[&mend[0], &mend[1]]);
}

/// When the oldest process of this name started, in seconds of CLOCK_REALTIME (proc(5): `btime` of
/// /proc/stat, and field 22 of /proc/PID/stat, in ticks).
fn started(node: &Node, name: &str) -> Option<u64> {
    let stat = node.text("/proc/stat")?;
    let boot: u64 = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
    let ticks = |pid: &String| -> Option<u64> {
        let folder = format!("/proc/{pid}");
        if node.text(&format!("{folder}/comm"))?.trim_end() != name {
            return None;
        }
        parse_stat(node.text(&format!("{folder}/stat"))?.as_bytes()).map(|stat| stat.starttime)
    };
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let oldest = node.names("/proc").iter().filter(|name| is_number(name)).filter_map(ticks).min()?;
    Some(boot + oldest / rustix::param::clock_ticks_per_second())
}
