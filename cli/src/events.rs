//! `fgpu events`: who held which GPU, when and how much, and who was refused.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::time::{Duration, SystemTime};

use fgpu_allocator::names;
use fgpu_allocator::{Key, Store};
use fgpu_engine::events::{FILE, Kind, Lines, SCHEMA};
use fgpu_spec::{Code, Error, GrantedGpu, Inventory};
use rustix::fs::inotify;
use serde::Deserialize;

use crate::changes::Changes;
use crate::find::{self, answers_to, begins};
use crate::node::Node;
use crate::output::Output;
use crate::quantity::{bytes, duration, percent};
use crate::screen::{FAINT, Look, STRONG, USED, WARNING, WRONG};
use crate::table::{Cell, Column, Table};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only what happened since then: 2h, 7d, 2026-11-21, '2026-11-21 19:00:00' (UTC)
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<SystemTime>,

    /// Only of this container: its id or the beginning of it, NAMESPACE/ID, or while it holds a share its
    /// name
    #[arg(long, value_name = "CONTAINER")]
    container: Option<String>,

    /// Only of this GPU: its index, or its UUID or the beginning of it
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,

    /// Only events of this kind; a comma list names several
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = Kind::ALL.map(Kind::word))]
    event: Vec<String>,

    /// Only the last so many of them
    #[arg(long, short = 'n', value_name = "COUNT")]
    last: Option<usize>,

    /// Go on with what happens from now on, until Ctrl-C
    #[arg(long, short)]
    follow: bool,

    /// Print the records as they are: one JSON object per line
    #[arg(long)]
    json: bool,
}

/// How often it looks although nothing has changed in the directory: it may not be there yet.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Reads a time: so long ago, a day, or a moment of it.
fn since(text: &str) -> Result<SystemTime, String> {
    let ago = || SystemTime::now().checked_sub(humantime::parse_duration(text).ok()?);
    let moment = || humantime::parse_rfc3339_weak(text).ok();
    let day = || humantime::parse_rfc3339_weak(&format!("{text}T00:00:00")).ok();
    let wrong = || "write how long ago (90s, 2h, 7d), a day (2026-11-21), or a time of it in UTC".to_owned();
    ago().or_else(moment).or_else(day).ok_or_else(wrong)
}

/// Shows what is recorded.
///
/// # Errors
/// `internal` if it cannot be read; `invalid-request` if there is no such GPU.
pub(crate) fn run(node: &Node, arguments: &Arguments) -> Result<Output, Error> {
    let mut reader = Reader {
        lines: Lines::open(&node.config.log_dir).map_err(|error| unreadable(node, &error))?,
        filter: Filter::of(node, arguments)?,
        last: arguments.last,
        newer: None,
    };
    let warnings = reader.lines.unread().iter().map(|(path, error)| format!("{}: {error}", path.display()));
    let mut warnings: Vec<_> = warnings.collect();
    let look = Look::of_stdout();
    let mut shown = Shown::new(node, arguments.json);
    reader.read(|line, event| shown.add(line, event)).map_err(|error| unreadable(node, &error))?;
    warnings.extend(reader.newer());
    if !arguments.follow {
        return Ok(Output { text: shown.text(&look), warnings, ..Output::default() });
    }
    for warning in warnings {
        // A caller that closed stderr does not want to know.
        let _ = writeln!(io::stderr(), "fgpu: warning: {warning}");
    }
    follow(node, &mut reader, &mut shown, &look)
}

/// Prints what is there, and then what comes.
fn follow(node: &Node, reader: &mut Reader, shown: &mut Shown, look: &Look) -> Result<Output, Error> {
    let kinds = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
    let mut changes = None;
    loop {
        let printed = io::stdout().write_all(shown.more(look).as_bytes()).and_then(|()| io::stdout().flush());
        match printed {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Output::default()),
            printed => printed
                .map_err(|error| Error::new(Code::Internal, format!("cannot write the output: {error}")))?,
        }
        if changes.is_none() {
            changes = Changes::of(&node.config.log_dir, kinds).ok();
        }
        match &changes {
            Some(changes) => changes.sleep(LOOK_AGAIN)?,
            None => std::thread::sleep(LOOK_AGAIN),
        }
        // `last` does not apply to what comes.
        reader.last = None;
        reader.read(|line, event| shown.add(line, event)).map_err(|error| unreadable(node, &error))?;
    }
}

fn unreadable(node: &Node, error: &io::Error) -> Error {
    let path = node.config.log_dir.join(FILE);
    match error.kind() {
        ErrorKind::PermissionDenied => Error::new(
            Code::Internal,
            format!(
                "cannot read {}: its mode, or that of its directory, does not let this user; run this as root, or let everybody \
                 look: chmod o+rX {} {}",
                path.display(),
                node.config.log_dir.display(),
                path.display()
            ),
        ),
        _ => Error::io("read", &path, error),
    }
}

/// A record, as docs/json.md describes it; what is not of interest here is left out.
#[derive(Debug, Deserialize)]
struct Event {
    time: String,
    event: String,
    namespace: Option<String>,
    container: Option<String>,
    grant: Option<String>,
    owner: Option<String>,
    request: Option<String>,
    #[serde(default)]
    gpus: Vec<GrantedGpu>,
    #[serde(default)]
    before: Vec<GrantedGpu>,
    held_ms: Option<u64>,
    code: Option<String>,
    message: Option<String>,
    #[serde(default)]
    used_memory: Vec<u64>,
    stopped: Option<bool>,
}

impl Event {
    fn key(&self) -> Option<Key> {
        Some(Key { namespace: self.namespace.clone()?, id: self.container.clone()? })
    }
}

/// The record, of which only some is asked for.
struct Reader {
    lines: Lines,
    filter: Filter,
    last: Option<usize>,
    /// How many records could not be read because a newer version wrote them, and the largest schema of them.
    newer: Option<(u64, u32)>,
}

/// What every record has.
#[derive(Deserialize)]
struct Head {
    schema: u32,
}

impl Reader {
    /// Says what was left out.
    fn newer(&self) -> Option<String> {
        self.newer.map(|(count, schema)| {
            format!(
                "{count} record(s) are left out: they have schema {schema}, and fgpu {} knows {SCHEMA}; a newer fgpu wrote them \
                 and shows them",
                env!("CARGO_PKG_VERSION")
            )
        })
    }

    /// Gives `each` the events that are asked for, with their lines.
    fn read(&mut self, mut each: impl FnMut(&str, &Event)) -> io::Result<()> {
        let Self { lines, filter, last, newer } = self;
        let mut kept = VecDeque::new();
        let mut one = |line: &[u8]| {
            // What is no record was cut short by a full disk.
            let Ok(text) = std::str::from_utf8(line) else { return };
            let event = match serde_json::from_str::<Event>(text) {
                Ok(event) => event,
                Err(_) => {
                    let head = serde_json::from_str::<Head>(text).ok();
                    if let Some(Head { schema }) = head.filter(|head| head.schema > SCHEMA) {
                        let (count, most) = newer.unwrap_or_default();
                        *newer = Some((count + 1, most.max(schema)));
                    }
                    return;
                }
            };
            if !filter.takes(&event) {
                return;
            }
            match *last {
                None => each(text, &event),
                Some(most) => {
                    kept.push_back((text.to_owned(), event));
                    kept.drain(..kept.len().saturating_sub(most));
                }
            }
        };
        lines.read(&mut one)?;
        kept.iter().for_each(|(text, event)| each(text, event));
        Ok(())
    }
}

/// What is asked for.
struct Filter {
    since: Option<SystemTime>,
    container: Option<String>,
    /// The containers that have this name now.
    called: Vec<Key>,
    /// The beginning of a UUID.
    gpu: Option<String>,
    kinds: Vec<String>,
}

impl Filter {
    fn of(node: &Node, arguments: &Arguments) -> Result<Self, Error> {
        let gpu = arguments.gpu.as_ref().map(|gpu| uuid(node, gpu)).transpose()?;
        let called = arguments.container.as_ref().map(|what| called(node, what)).unwrap_or_default();
        Ok(Self {
            since: arguments.since,
            container: arguments.container.clone(),
            called,
            gpu,
            kinds: arguments.event.clone(),
        })
    }

    fn takes(&self, event: &Event) -> bool {
        let recent = |since| humantime::parse_rfc3339(&event.time).is_ok_and(|time| time >= since);
        let on =
            |gpu: &String| event.gpus.iter().chain(&event.before).any(|share| share.uuid.starts_with(gpu));
        self.since.is_none_or(recent)
            && (self.kinds.is_empty() || self.kinds.contains(&event.event))
            && self.gpu.as_ref().is_none_or(on)
            && self.container.as_ref().is_none_or(|what| self.means(what, event))
    }

    fn means(&self, what: &str, event: &Event) -> bool {
        event.key().is_some_and(|key| begins(&key, what) || self.called.contains(&key))
    }
}

/// The GPUs as they were last stored, for any user; the driver is not asked.
fn known(node: &Node) -> Option<Inventory> {
    fgpu_driver::cached(&node.config.driver_root, &node.config.state_dir).ok().flatten()
}

/// The UUID of the GPU with this index, or the beginning of one as it stands.
fn uuid(node: &Node, gpu: &str) -> Result<String, Error> {
    let Ok(index) = gpu.parse::<u32>() else { return Ok(gpu.to_owned()) };
    let inventory = known(node);
    let found = inventory.iter().flat_map(|inventory| &inventory.gpus).find(|gpu| gpu.index == index);
    found.map(|gpu| gpu.uuid.clone()).ok_or_else(|| {
        let message = format!(
            "there is no GPU {index}; `fgpu inventory` lists those that are known, name others by UUID"
        );
        Error::new(Code::InvalidRequest, message)
    })
}

/// The containers that hold a share and have this name. If that cannot be told, their ids have to do.
fn called(node: &Node, what: &str) -> Vec<Key> {
    let directory = &node.config.state_dir;
    // To open it is to make it, where it is not there.
    let store = directory.exists().then(|| Store::open(directory)).and_then(Result::ok);
    let leases = store.and_then(|store| store.leases().ok()).unwrap_or_default();
    let is = |name: &str| answers_to(name, what);
    let called = find::candidates(&leases).into_iter().filter(|one| one.name.as_deref().is_some_and(is));
    called.map(|one| one.key.clone()).collect()
}

/// What is shown.
struct Shown {
    inventory: Option<Inventory>,
    /// The one that it is now: of other years it is told which.
    year: String,
    json: Option<String>,
    table: Table,
}

impl Shown {
    fn new(node: &Node, json: bool) -> Self {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let year = now.split('-').next().unwrap_or_default().to_owned();
        Self { inventory: known(node), year, json: json.then(String::new), table: table() }
    }

    fn add(&mut self, line: &str, event: &Event) {
        match &mut self.json {
            Some(json) => json.extend([line, "\n"]),
            None => rows(event, self.inventory.as_ref(), &self.year, &mut self.table),
        }
    }

    /// All of it.
    fn text(&mut self, look: &Look) -> String {
        match &mut self.json {
            Some(json) => std::mem::take(json),
            None if self.table.is_empty() => "Nothing like that is recorded.\n".into(),
            None => self.table.fitted(look),
        }
    }

    /// What was added since the last call.
    fn more(&mut self, look: &Look) -> String {
        match &mut self.json {
            Some(json) => std::mem::take(json),
            None => self.table.more(look),
        }
    }
}

fn table() -> Table {
    Table::of([
        Column::new("DATE").drop(1),
        Column::new("UTC"),
        Column::new("EVENT"),
        Column::new("CONTAINER").cut(9),
        Column::new("GPU").right().cut(8),
        Column::new("MEMORY").right().drop(2),
        Column::new("SM").right().drop(5),
        Column::new("HELD").right().drop(3),
        Column::new("OWNER").cut(6).drop(6),
        Column::new("DETAIL").cut(16).drop(4),
    ])
}

/// A row for each GPU; below the first without repeating what has happened.
fn rows(event: &Event, inventory: Option<&Inventory>, year: &str, table: &mut Table) {
    let (date, time) = event.time.split_once('T').unwrap_or(("", &event.time));
    let date = date.strip_prefix(year).and_then(|date| date.strip_prefix('-')).unwrap_or(date);
    // Microseconds are for programs.
    let time = time.get(..8).unwrap_or(time);
    let style = match event.event.as_str() {
        "granted" => USED,
        "refused" | "exceeded" => WRONG,
        "reconciled" | "lost" => WARNING,
        _ => FAINT,
    };
    let nobody = [None];
    let shares: Vec<Option<&GrantedGpu>> = match event.gpus.is_empty() {
        true => nobody.to_vec(),
        false => event.gpus.iter().map(Some).collect(),
    };
    for (place, share) in shares.into_iter().enumerate() {
        let once = |text: String| Cell::from(if place == 0 { text } else { String::new() });
        let of_share = |text: fn(&GrantedGpu) -> String| Cell::from(share.map(text).unwrap_or_default());
        let index = |share: &GrantedGpu| {
            let known =
                inventory.and_then(|inventory| inventory.gpus.iter().find(|gpu| gpu.uuid == share.uuid));
            known.map_or_else(|| share.uuid.clone(), |gpu| gpu.index.to_string())
        };
        table.row([
            once(date.to_owned()),
            once(time.to_owned()),
            Cell::styled(if place == 0 { event.event.as_str() } else { "" }, style),
            Cell::styled(if place == 0 { who(event) } else { String::new() }, STRONG),
            Cell::from(share.map(index).unwrap_or_default()),
            of_share(|share| bytes(share.memory)),
            of_share(|share| percent(share.cores_ppm.into())),
            once(event.held_ms.map(|held| duration(held / 1000)).unwrap_or_default()),
            once(event.owner.clone().unwrap_or_default()),
            Cell::from(detail(event, place)),
        ]);
    }
}

/// The container; where only its grant is known, the beginning of that.
fn who(event: &Event) -> String {
    match (event.key(), &event.grant) {
        (Some(key), _) => names::called(&key, None),
        (None, Some(grant)) => format!("grant {}", grant.get(..8).unwrap_or(grant)),
        (None, None) => String::new(),
    }
}

/// What there is to say besides of the GPU in this place of the event's.
fn detail(event: &Event, place: usize) -> String {
    if let Some(used) = event.used_memory.get(place) {
        let end = if event.stopped == Some(true) { ", stopped" } else { "" };
        return format!("uses {}{end}", bytes(*used));
    }
    let share = event.gpus.get(place);
    let before = share.and_then(|share| event.before.iter().find(|before| before.uuid == share.uuid));
    match (before, &event.code, &event.message) {
        (Some(before), ..) => {
            format!("instead of {}, {}", bytes(before.memory), percent(before.cores_ppm.into()))
        }
        (None, Some(code), Some(message)) => format!("{code}: {message}"),
        _ if place == 0 => event.request.clone().unwrap_or_default(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
