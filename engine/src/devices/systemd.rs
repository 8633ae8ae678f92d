//! systemd keeps a device list of its own for every unit, and applies it anew on `daemon-reload`: what was
//! changed behind its back is lost then. So the devices are added to the container's unit as well, until the
//! next boot.
//!
//! Only a scope is touched, and only one that holds nothing but the container (see `cgroup`): scopes are what
//! runtimes have systemd make for a container.

use std::io;
use std::path::Path;
use std::time::Duration;

use fgpu_spec::{Code, DeviceNode, Error};

use super::dbus::{Body, Connection, Contents, Method, Reply};
use super::pin::Pin;

/// systemd's own socket, which systemctl uses too; it works without a bus.
const PRIVATE: &str = "/run/systemd/private";
const BUS: &str = "/run/dbus/system_bus_socket";
const NAME: &str = "org.freedesktop.systemd1";
/// How long systemd may take for everything that is asked of it at one time. It answers in less than a
/// millisecond, but a node that boots can keep it busy for seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A unit's `DeviceAllow`: path and access.
type Rules = Vec<(String, String)>;

/// Where systemd listens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Systemd<'a> {
    private: &'a Path,
    bus: &'a Path,
    patience: Duration,
}

impl Systemd<'static> {
    /// The node's.
    pub(super) fn of_the_node() -> Self {
        Self { private: Path::new(PRIVATE), bus: Path::new(BUS), patience: PATIENCE }
    }
}

/// What was added to a unit.
#[derive(Debug)]
pub(super) struct Added {
    unit: String,
    rules: Rules,
    /// What the unit had for the same paths.
    before: Rules,
}

/// What [`Systemd::allow`] found and did.
#[derive(Debug, Default)]
pub(super) struct Unit {
    /// `None`: there is no systemd, it has no such unit, the unit limits no devices, or it has these already.
    pub(super) added: Option<Added>,
    /// Where systemd takes the unit's device programs from.
    pub(super) pins: Vec<Pin>,
}

impl Systemd<'_> {
    /// Adds the devices to the scope that this cgroup was made for.
    ///
    /// # Errors
    /// systemd does not answer in time, or refuses.
    pub(super) fn allow(self, unit: &str, cgroup: &str, nodes: &[DeviceNode]) -> Result<Unit, Error> {
        again_if_lost(|| self.try_allow(unit, cgroup, nodes)).map_err(|error| {
            let message = format!(
                "cannot add the devices to the systemd unit {unit}, without which `systemctl daemon-reload` would \
                 take them away: {}; try again, or use --runtime=fgpu-runtime",
                told(&error)
            );
            Error::new(Code::Internal, message)
        })
    }

    fn try_allow(self, unit: &str, cgroup: &str, nodes: &[DeviceNode]) -> io::Result<Unit> {
        let Some(mut scope) = self.scope(unit)? else { return Ok(Unit::default()) };
        if scope.get("ControlGroup")?.property()? != cgroup {
            return Ok(Unit::default()); // a namesake
        }
        Ok(Unit { pins: scope.pins()?, added: scope.add(nodes)? })
    }

    /// Takes back what was added, unless it is gone already.
    ///
    /// # Errors
    /// systemd does not answer in time, or refuses.
    pub(super) fn undo(self, added: &Added) -> Result<(), Error> {
        again_if_lost(|| self.try_undo(added)).map_err(|error| {
            let (unit, told) = (&added.unit, told(&error));
            let message = format!("cannot take the devices back from the systemd unit {unit}: {told}");
            Error::new(Code::Internal, message)
        })
    }

    fn try_undo(self, added: &Added) -> io::Result<()> {
        let Some(mut scope) = self.scope(&added.unit)? else { return Ok(()) };
        let mut rules = scope.rules()?;
        let all = rules.len();
        rules.retain(|rule| !added.rules.contains(rule));
        if rules.len() == all {
            return Ok(());
        }
        rules.extend(added.before.iter().cloned());
        // A list is added to what is there; an empty one clears it.
        scope.set(&[("DeviceAllow", &[]), ("DeviceAllow", &rules)])?;
        scope.rules().map(drop) // until then it may not have been applied
    }

    fn scope(self, unit: &str) -> io::Result<Option<Scope>> {
        let connection = match Connection::to_peer(self.private, self.patience)? {
            Some(connection) => Some(connection),
            None => Connection::to_bus(self.bus, self.patience)?,
        };
        let Some(mut connection) = connection else { return Ok(None) };
        match connection.call(manager("GetUnit"), Body::default().string(unit))? {
            Reply::Return(contents) => {
                Ok(Some(Scope { connection, unit: unit.to_owned(), path: contents.path()? }))
            }
            Reply::Error { name, .. } if name == "org.freedesktop.systemd1.NoSuchUnit" => Ok(None),
            // No process has the name on this bus: it is not systemd's.
            Reply::Error { name, .. } if name == "org.freedesktop.DBus.Error.ServiceUnknown" => Ok(None),
            Reply::Error { name, text } => Err(refused(&name, &text)),
        }
    }
}

/// systemd drops its connections when it executes itself anew. What is asked of it can be asked again.
fn again_if_lost<T>(ask: impl Fn() -> io::Result<T>) -> io::Result<T> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match ask() {
        Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) => ask(),
        result => result,
    }
}

/// A scope that systemd knows.
struct Scope {
    connection: Connection,
    unit: String,
    path: String,
}

impl Scope {
    fn get(&mut self, property: &str) -> io::Result<Contents> {
        done(self.ask(property)?)
    }

    fn ask(&mut self, property: &str) -> io::Result<Reply> {
        let method = Method {
            destination: NAME,
            path: &self.path,
            interface: "org.freedesktop.DBus.Properties",
            member: "Get",
        };
        let body = Body::default().string("org.freedesktop.systemd1.Scope").string(property);
        self.connection.call(method, body)
    }

    fn add(&mut self, nodes: &[DeviceNode]) -> io::Result<Option<Added>> {
        let before = self.rules()?;
        // With `auto` an empty list allows everything, and one with an entry allows no more than that.
        if before.is_empty() && self.get("DevicePolicy")?.property()? == "auto" {
            return Ok(None);
        }
        let rules: Rules = nodes.iter().filter(|node| !covered(&before, node)).flat_map(rules).collect();
        if rules.is_empty() {
            return Ok(None);
        }
        let before = before.into_iter().filter(|(path, _)| rules.iter().any(|(added, _)| added == path));
        let added = Added { unit: self.unit.clone(), before: before.collect(), rules };
        self.set(&[("DeviceAllow", &added.rules)])?;
        // systemd answers before it applies a change, but it applies all before it reads the next call.
        let now = self.rules()?;
        if !added.rules.iter().all(|rule| now.contains(rule)) {
            return Err(io::Error::other("it took the change and does not show it"));
        }
        Ok(Some(added))
    }

    fn pins(&mut self) -> io::Result<Vec<Pin>> {
        match self.ask("BPFProgram")? {
            Reply::Return(contents) => {
                let programs = contents.property_pairs()?;
                let device = programs.iter().filter(|(attach_type, _)| attach_type == "device");
                Ok(device.filter_map(|(_, path)| Pin::new(path)).collect())
            }
            // Before version 249.
            Reply::Error { name, .. } if name == "org.freedesktop.DBus.Error.UnknownProperty" => {
                Ok(Vec::new())
            }
            Reply::Error { name, text } => Err(refused(&name, &text)),
        }
    }

    fn rules(&mut self) -> io::Result<Rules> {
        self.get("DeviceAllow")?.property_pairs()
    }

    /// Sets properties, in order, until the next boot.
    fn set(&mut self, properties: &[(&str, &[(String, String)])]) -> io::Result<()> {
        let body = Body::default().string(&self.unit).boolean(true).lists(properties);
        done(self.connection.call(manager("SetUnitProperties"), body)?).map(drop)
    }
}

fn manager(member: &str) -> Method<'_> {
    Method {
        destination: NAME,
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member,
    }
}

fn done(reply: Reply) -> io::Result<Contents> {
    match reply {
        Reply::Return(contents) => Ok(contents),
        Reply::Error { name, text } => Err(refused(&name, &text)),
    }
}

fn refused(name: &str, text: &str) -> io::Error {
    io::Error::other(format!("{name}: {text}"))
}

fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "it does not answer".into(),
        _ => error.to_string(),
    }
}

/// Since version 240 systemd reads the numbers from `/dev/char/M:m` and needs no such file. Before, it looks
/// the file up and leaves a rule out if its file is missing; then the node's own path helps, if the host has
/// it there.
fn rules(node: &DeviceNode) -> Rules {
    let by_number = by_number(node);
    let named = !Path::new(&by_number).exists() && is(Path::new(&node.path), node);
    let paths = [Some(by_number), named.then(|| node.path.clone())];
    paths.into_iter().flatten().map(|path| (path, "rw".to_owned())).collect()
}

fn by_number(node: &DeviceNode) -> String {
    format!("/dev/char/{}:{}", node.major, node.minor)
}

/// Whether a file of the host is this device.
fn is(path: &Path, node: &DeviceNode) -> bool {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let number = nix::sys::stat::makedev(node.major.into(), node.minor.into());
    std::fs::symlink_metadata(path)
        .is_ok_and(|file| file.file_type().is_char_device() && file.rdev() == number)
}

fn covered(rules: &Rules, node: &DeviceNode) -> bool {
    let path = by_number(node);
    rules.iter().any(|(rule, access)| *rule == path && access.contains('r') && access.contains('w'))
}

#[cfg(test)]
mod tests;
