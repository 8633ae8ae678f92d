//! The status as people read it.

use std::fmt::Write;

use fgpu_allocator::State;

use crate::bar::{self, Bar};
use crate::output::word;
use crate::quantity::{about, bytes, cores, duration, percent};
use crate::queue;
use crate::screen::{FAINT, Look, STRONG, WARNING, WRONG, paint};
use crate::table::{Cell, Column, Table, plain};

use super::{GpuStatus, LeaseStatus, Order, ShareStatus, Status};

/// How long bars are, in columns: where the width does not matter, and at least.
const BAR: usize = 16;
const SHORT_BAR: usize = 6;

/// The whole of it, each line with its end.
pub(super) fn text(status: &Status, order: Order, look: &Look) -> String {
    let mut parts = vec![head(status, look)];
    if !status.gpus.is_empty() {
        parts.push(gpus(&status.gpus, look));
        parts.extend(troubles(&status.gpus));
        parts.extend(offered(&status.gpus));
    }
    match status.leases.is_empty() {
        true => parts.push("No container holds a share.\n".into()),
        false => parts.push(leases(status, order, look)),
    }
    if !status.queue.is_empty() {
        parts.push(queue::text(&status.queue, look));
    }
    parts.join("\n")
}

fn head(status: &Status, look: &Look) -> String {
    let count = |number: usize, one: &str| match number {
        1 => format!("1 {one}"),
        number => format!("{number} {one}s"),
    };
    let fits = |length: usize| look.width.is_none_or(|width| length <= width);
    let mut words = [
        count(status.gpus.len(), "GPU"),
        count(status.leases.iter().filter(|lease| !lease.gone).count(), "container"),
    ]
    .join(", ");
    if !status.queue.is_empty() {
        words += &format!(", {} waiting", status.queue.len());
    }
    let driver = status.driver_version.as_ref().map(|version| format!(", driver {}", plain(version)));
    words += &driver.filter(|driver| fits(words.len() + driver.len())).unwrap_or_default();
    let mut line = String::new();
    paint(&mut line, &words, STRONG, look);
    let legend = bar::signs(look).into_iter().zip(["used", "granted", "free"]);
    let length = words.len() + legend.clone().map(|(_, word)| word.len() + 4).sum::<usize>();
    if fits(length) && !status.gpus.is_empty() {
        for ((sign, style), word) in legend {
            line.push_str("  ");
            paint(&mut line, sign, style, look);
            paint(&mut line, &format!(" {word}"), FAINT, look);
        }
    }
    line + "\n"
}

fn gpus(gpus: &[GpuStatus], look: &Look) -> String {
    let mut table = Table::of([
        Column::new("GPU").right(),
        Column::new("MODEL").cut(10).drop(3),
        Column::new("MEMORY").cut(SHORT_BAR).grow(40).drop(1),
        Column::new("USED").right(),
        Column::new("GRANTED").right(),
        Column::new("FREE").right(),
        Column::new("SMS").grow(24).extra(4),
        Column::new("BUSY").right().drop(2),
        Column::new("SM").right(),
        Column::new("CONTAINERS").right().extra(5),
        Column::new("UUID").extra(6),
    ]);
    for gpu in gpus {
        table.row(gpu_row(gpu));
    }
    table.fitted(look)
}

/// What leases do not tell of the GPUs.
fn troubles(gpus: &[GpuStatus]) -> Option<String> {
    let mut lines = String::new();
    for gpu in gpus {
        if let Some(why) = &gpu.unhealthy {
            let _ = writeln!(lines, "GPU {} serves nothing: {}.", gpu.index, plain(why));
        }
        if let Some(memory) = gpu.foreign_memory.filter(|memory| *memory > 0) {
            let who = gpu.foreign_processes.iter().map(|one| format!("pid {} {}", one.pid, plain(&one.name)));
            let who = who.collect::<Vec<_>>().join(", ");
            let _ = writeln!(
                lines,
                "{} of GPU {} is held by processes outside fgpu: {who}.",
                bytes(memory),
                gpu.index
            );
        }
    }
    (!lines.is_empty()).then_some(lines)
}

/// Which GPUs another scheduler gives out alone.
fn offered(gpus: &[GpuStatus]) -> Option<String> {
    let claims = of_one(gpus, "claims of Kubernetes", |gpu| gpu.for_claims_of.as_ref());
    let jobs = of_one(gpus, "jobs of Slurm", |gpu| gpu.for_jobs_of.as_ref());
    let both: String = claims.into_iter().chain(jobs).collect();
    (!both.is_empty()).then_some(both)
}

fn of_one(
    gpus: &[GpuStatus],
    whose: &str,
    node_of: impl Fn(&GpuStatus) -> Option<&String>,
) -> Option<String> {
    let node = gpus.iter().find_map(&node_of)?;
    let offered = gpus.iter().filter(|gpu| node_of(gpu).is_some());
    let indices: Vec<_> = offered.map(|gpu| gpu.index.to_string()).collect();
    let (word, verb) = if indices.len() == 1 { ("GPU", "is") } else { ("GPUs", "are") };
    Some(format!("{word} {} {verb} for {whose} alone (node {}).\n", indices.join(", "), plain(node)))
}

fn gpu_row(gpu: &GpuStatus) -> Vec<Cell> {
    let index = Cell::styled(gpu.index.to_string(), STRONG);
    if gpu.mig_enabled {
        let note = Cell::styled(if gpu.leases > 0 { "MIG" } else { "MIG, no slice granted" }, FAINT);
        return vec![
            index,
            model(gpu),
            note,
            unknown(),
            Cell::from(bytes(gpu.granted_memory)),
            unknown(),
            Cell::from(""),
            unknown(),
            unknown(),
            Cell::from(gpu.leases.to_string()),
            Cell::styled(&gpu.uuid, FAINT),
        ];
    }
    let used = gpu.used_memory.unwrap_or(0);
    let memory = Bar { used, granted: gpu.granted_memory, whole: gpu.usable_memory, usual: BAR };
    // Time that no other container wants may be used beyond what is granted.
    let busy = gpu.used_cores_ppm.unwrap_or(0);
    let sms = Bar { used: busy, granted: gpu.granted_cores_ppm.max(busy), whole: 1_000_000, usual: BAR };
    let free = match (&gpu.unhealthy, gpu.exclusive) {
        (Some(_), _) => Cell::styled("unhealthy", WRONG),
        (None, true) => Cell::styled("exclusive", WARNING),
        (None, false) => {
            let taken = gpu.granted_memory.saturating_add(gpu.avoided);
            Cell::from(bytes(gpu.usable_memory.saturating_sub(taken)))
        }
    };
    vec![
        index,
        model(gpu),
        Cell::Bar(memory),
        gpu.used_memory.map_or_else(unknown, |used| Cell::from(bytes(used))),
        Cell::from(bytes(gpu.granted_memory)),
        free,
        Cell::Bar(sms),
        gpu.used_cores_ppm.map_or_else(unknown, |busy| Cell::from(about(busy))),
        Cell::from(percent(gpu.granted_cores_ppm)),
        Cell::from(gpu.leases.to_string()),
        Cell::styled(&gpu.uuid, FAINT),
    ]
}

/// What is not measured.
fn unknown() -> Cell {
    Cell::styled("-", FAINT)
}

/// The model without what all of them are called.
fn model(gpu: &GpuStatus) -> Cell {
    Cell::from(gpu.model.strip_prefix("NVIDIA ").unwrap_or(&gpu.model))
}

fn leases(status: &Status, order: Order, look: &Look) -> String {
    let leases = &status.leases;
    // Names are cut short only where nothing else is left to go.
    let name = if look.width.is_some_and(|width| width < 48) { 8 } else { 12 };
    let mut table = Table::of([
        Column::new("CONTAINER").cut(name),
        Column::new("ID").extra(9),
        Column::new("IMAGE").cut(12).drop(5),
        Column::new("GPU").right(),
        Column::new("SLICE").drop(7),
        Column::new("USED").right(),
        Column::new("MEMORY").right(),
        Column::new("BUSY").right().drop(1),
        Column::new("SM").right(),
        Column::new("TIER").drop(3),
        Column::new("OWNER").cut(6).drop(4),
        Column::new("SINCE").right().drop(2),
        Column::new("STATE").drop(6),
    ]);
    let mut sorted: Vec<&LeaseStatus> = leases.iter().collect();
    if order == Order::Use {
        let used = |lease: &&LeaseStatus| {
            lease.gpus.iter().filter_map(|share| share.used_memory).fold(0, u64::saturating_add)
        };
        sorted.sort_by_key(|lease| std::cmp::Reverse(used(lease)));
    }
    for lease in sorted {
        for (place, share) in lease.gpus.iter().enumerate() {
            table.row(lease_row(lease, share, place == 0));
        }
    }
    let mut text = table.fitted(look);
    // Of one that is being made it is not known yet, either.
    let made = leases.iter().filter(|lease| lease.state == State::Active && !lease.gone);
    let measured = |share: &ShareStatus| share.used_memory.is_some() && share.used_cores_ppm.is_some();
    if !made.flat_map(|lease| &lease.gpus).all(measured) {
        let why =
            if status.is_blind { "-: only root can see it" } else { "-: not limited, and so not measured" };
        paint(&mut text, why, FAINT, look);
        text.push('\n');
    }
    if leases.iter().any(|lease| lease.gone) {
        let why = "gone: it has ended; whoever needs its share has it, and `fgpu gc` gives it back now";
        paint(&mut text, why, FAINT, look);
        text.push('\n');
    }
    text
}

/// The container's other GPUs go below the first, without repeating whose they are.
fn lease_row(lease: &LeaseStatus, share: &ShareStatus, first: bool) -> Vec<Cell> {
    let once = |cell: Cell| if first { cell } else { Cell::from("") };
    let known = |text: Option<&String>| Cell::from(text.map_or("", String::as_str));
    let (name, id) = match &lease.name {
        // A program that is run has no id but its process.
        Some(name) if *name != lease.container => (name.as_str(), lease.short.as_str()),
        _ => (lease.short.as_str(), ""),
    };
    let used = match share.used_memory {
        Some(used) if used > share.memory => Cell::styled(bytes(used), WRONG),
        Some(used) => Cell::from(bytes(used)),
        None => unknown(),
    };
    vec![
        once(Cell::styled(name, STRONG)),
        once(Cell::styled(id, FAINT)),
        once(known(lease.image.as_ref())),
        Cell::from(share.index.map_or_else(|| share.uuid.clone(), |index| index.to_string())),
        Cell::from(share.mig.as_deref().unwrap_or_default()),
        used,
        Cell::from(bytes(share.memory)),
        share.used_cores_ppm.map_or_else(unknown, |busy| Cell::from(about(busy.into()))),
        Cell::from(cores(lease.compute, share.cores_ppm)),
        once(Cell::from(word(&lease.tier))),
        once(known(lease.owner.as_ref())),
        once(Cell::from(duration(lease.held_seconds))),
        // What is as it should be needs no word.
        once(match (&lease.exceeded, lease.state) {
            _ if lease.gone => Cell::styled("gone", WARNING),
            (Some(_), _) => Cell::styled("exceeded", WRONG),
            (None, State::Active) => Cell::from(""),
            (None, State::Claimed) => Cell::styled("claimed", FAINT),
            (None, state) => Cell::styled(word(&state), WARNING),
        }),
    ]
}
