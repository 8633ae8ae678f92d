//! The families of metrics and their samples. docs/metrics.md has them as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use fgpu_engine::events::Kind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Reading;
use crate::output::word;
use crate::status::{GpuStatus, LeaseStatus, ShareStatus};

/// The two formats of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' text format, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    Open,
}

/// The whole answer.
pub(super) fn page(reading: &Reading, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(Mutex::new(families(reading)))));
    let mut text = String::new();
    // A String takes all that is written to it.
    let _ = encode(&mut text, &registry);
    match format {
        Format::Open => text,
        Format::Text => classic(&text),
    }
}

/// OpenMetrics as text format 0.0.4: there a counter's family has the name of its samples, and nothing marks the
/// end (prometheus.io, "Exposition formats").
fn classic(open: &str) -> String {
    let mut text = String::with_capacity(open.len() + 512);
    let counters: Vec<&str> =
        open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    for line in open.lines().filter(|line| *line != "# EOF") {
        let comment = line.strip_prefix("# ").and_then(|rest| {
            let (word, rest) = rest.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            counters.contains(&name).then(|| format!("# {word} {name}_total {rest}"))
        });
        text += comment.as_deref().unwrap_or(line);
        text.push('\n');
    }
    text
}

/// One metric with all its samples.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Labels, f64)>,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Families(Mutex<Vec<Family>>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let families = self.0.lock().map_err(|_| fmt::Error)?;
        for family in families.iter().filter(|family| !family.samples.is_empty()) {
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, family.kind)?;
            if let [(labels, value)] = &family.samples[..]
                && labels.is_empty()
            {
                sample(family.kind, *value, metric)?;
                continue;
            }
            for (labels, value) in &family.samples {
                sample(family.kind, *value, metric.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

fn sample(kind: MetricType, value: f64, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match kind {
        MetricType::Counter => ConstCounter::new(value).encode(encoder),
        _ => ConstGauge::new(value).encode(encoder),
    }
}

/// Every family, in the order of docs/metrics.md.
fn families(reading: &Reading) -> Vec<Family> {
    let mut all = node(reading);
    all.extend(gpus(reading));
    all.extend(leases(&reading.status.leases));
    all.extend(queue(reading));
    all.extend(counts(reading));
    all
}

fn gauge(name: &'static str, help: &'static str, samples: impl IntoIterator<Item = (Labels, f64)>) -> Family {
    Family { name, help, kind: MetricType::Gauge, samples: samples.into_iter().collect() }
}

fn counter(
    name: &'static str,
    help: &'static str,
    samples: impl IntoIterator<Item = (Labels, f64)>,
) -> Family {
    Family { name, help, kind: MetricType::Counter, samples: samples.into_iter().collect() }
}

fn node(reading: &Reading) -> Vec<Family> {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let known = f64::from(u8::from(reading.inventory.is_some()));
    vec![
        gauge("fgpu_build_info", "The version of fgpu on this node; always 1", [(version, 1.0)]),
        gauge(
            "fgpu_inventory_timestamp_seconds",
            "When the driver was asked last which GPUs there are, in seconds since 1970",
            reading.asked.map(|time| (Vec::new(), time)),
        ),
        gauge(
            "fgpu_inventory_current",
            "Whether what the driver said then still holds: no boot, driver or GPU has changed since (1), or nothing can be \
             said of GPUs (0)",
            [(Vec::new(), known)],
        ),
    ]
}

fn gpus(reading: &Reading) -> Vec<Family> {
    let gpus = &reading.status.gpus;
    let each = |value: &dyn Fn(usize) -> Option<f64>| -> Vec<(Labels, f64)> {
        let sample =
            |(number, gpu): (usize, &GpuStatus)| Some((vec![("gpu_uuid", gpu.uuid.clone())], value(number)?));
        gpus.iter().enumerate().filter_map(sample).collect()
    };
    let total = |number: usize| {
        let gpu = reading.inventory.as_ref()?.gpus.get(number)?;
        Some(if gpu.mig_enabled { gpu.total_memory } else { gpus[number].usable_memory } as f64)
    };
    let info = |gpu: &GpuStatus| {
        let labels = vec![
            ("gpu_uuid", gpu.uuid.clone()),
            ("gpu", gpu.index.to_string()),
            ("model", gpu.model.clone()),
            ("mig", gpu.mig_enabled.to_string()),
        ];
        (labels, 1.0)
    };
    vec![
        gauge(
            "fgpu_gpu_info",
            "A GPU of the node: its index, its model and whether it is in MIG mode; always 1",
            gpus.iter().map(info),
        ),
        gauge(
            "fgpu_gpu_memory_bytes",
            "The memory of a GPU that can be granted when it is empty; in MIG mode all that it has",
            each(&total),
        ),
        gauge(
            "fgpu_gpu_memory_granted_bytes",
            "The memory of a GPU that leases hold",
            each(&|number| Some(gpus[number].granted_memory as f64)),
        ),
        gauge(
            "fgpu_gpu_memory_used_bytes",
            "The memory of a GPU that containers with a limit use, as their libraries count",
            each(&|number| Some(gpus[number].used_memory? as f64)),
        ),
        gauge(
            "fgpu_gpu_memory_foreign_bytes",
            "The memory of a GPU that processes outside of all leases were last seen to use; absent if nobody has looked",
            each(&|number| Some(gpus[number].foreign_memory? as f64)),
        ),
        gauge(
            "fgpu_gpu_sm_granted_ratio",
            "The part of the SM time of a GPU that leases hold",
            each(&|number| Some(gpus[number].granted_cores_ppm as f64 / 1e6)),
        ),
        gauge(
            "fgpu_gpu_healthy",
            "Whether a GPU can be granted (1), or was seen to refuse work (0)",
            each(&|number| Some(f64::from(u8::from(gpus[number].unhealthy.is_none())))),
        ),
    ]
}

/// The samples of each lease and GPU: slices of one GPU are added up.
fn shares(leases: &[LeaseStatus], value: impl Fn(&ShareStatus) -> Option<f64>) -> Vec<(Labels, f64)> {
    let mut samples = Vec::new();
    for lease in leases {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for share in &lease.gpus {
            if let Some(value) = value(share) {
                *sums.entry(&share.uuid).or_default() += value;
            }
        }
        let labels = |uuid: &str| vec![("lease", lease.grant.to_string()), ("gpu_uuid", uuid.to_owned())];
        samples.extend(sums.into_iter().map(|(uuid, sum)| (labels(uuid), sum)));
    }
    samples
}

fn leases(leases: &[LeaseStatus]) -> Vec<Family> {
    let own = |lease: &LeaseStatus| vec![("lease", lease.grant.to_string())];
    vec![
        gauge(
            "fgpu_lease_info",
            "A lease, and what the holder is called; always 1",
            leases.iter().map(|lease| (info(lease), 1.0)),
        ),
        gauge(
            "fgpu_lease_start_timestamp_seconds",
            "When a lease was made, in seconds since 1970",
            leases.iter().map(|lease| (own(lease), lease.made)),
        ),
        gauge(
            "fgpu_lease_memory_limit_bytes",
            "The memory of a GPU that a lease holds",
            shares(leases, |share| Some(share.memory as f64)),
        ),
        gauge(
            "fgpu_lease_memory_used_bytes",
            "The memory of a GPU that the holder of a lease uses, as its libraries count; absent without a limit",
            shares(leases, |share| Some(share.used_memory? as f64)),
        ),
        gauge(
            "fgpu_lease_sm_limit_ratio",
            "The part of the SM time of a GPU that a lease holds; 0 is what others leave",
            shares(leases, |share| Some(f64::from(share.cores_ppm) / 1e6)),
        ),
        counter(
            "fgpu_lease_sm_seconds",
            "The SM time of a GPU that the holder of a lease has used, of the whole GPU; absent if it is not limited",
            shares(leases, |share| Some(share.used_cores_ns? as f64 / 1e9)),
        ),
        gauge(
            "fgpu_lease_exceeded",
            "Whether fgpu-watch sees the holder of a lease above its memory",
            leases.iter().map(|lease| (own(lease), f64::from(u8::from(lease.exceeded.is_some())))),
        ),
    ]
}

/// The most of a name that its maker chose, bytes: Kubernetes' names have three times 253 at most.
const LONGEST: usize = 768;

fn clip(name: &str) -> String {
    name[..name.floor_char_boundary(LONGEST)].to_owned()
}

/// The names of a lease's holder. In Kubernetes the name has three parts.
fn info(lease: &LeaseStatus) -> Labels {
    let name = clip(lease.name.as_deref().unwrap_or(&lease.short));
    let parts: Vec<&str> = name.split('/').collect();
    let (namespace, pod, container) = match parts[..] {
        [namespace, pod, container] => (namespace.to_owned(), pod.to_owned(), container.to_owned()),
        _ => (String::new(), String::new(), name.clone()),
    };
    vec![
        ("lease", lease.grant.to_string()),
        ("holder", name),
        ("container", container),
        ("engine", engine(&lease.namespace, !pod.is_empty()).to_owned()),
        ("namespace", namespace),
        ("pod", pod),
        ("owner", lease.owner.clone().unwrap_or_default()),
        ("tier", word(&lease.tier)),
        ("image", clip(lease.image.as_deref().unwrap_or_default())),
    ]
}

/// Whose container it is, by where fgpu met it: containerd's namespace, a runtime's state folder that ends with it,
/// or the bundle, for a hook.
fn engine(namespace: &str, is_pod: bool) -> &str {
    match namespace.rsplit('/').next().unwrap_or_default() {
        "moby" => "docker",
        "run" => "fgpu-run",
        "userdata" if is_pod => "cri-o",
        "userdata" => "podman",
        "k8s.io" | "pod" | "claim" | "kubernetes" => "kubernetes",
        _ => "containerd",
    }
}

fn queue(reading: &Reading) -> Vec<Family> {
    let queue = &reading.status.queue;
    let head = queue.first().map_or(0, |first| first.waited_seconds);
    vec![
        gauge("fgpu_queue_waiting", "How many requests wait for room", [(Vec::new(), queue.len() as f64)]),
        gauge(
            "fgpu_queue_head_wait_seconds",
            "How long the first of them has waited; 0 if none waits",
            [(Vec::new(), head as f64)],
        ),
    ]
}

fn counts(reading: &Reading) -> Vec<Family> {
    let Some(counts) = &reading.counts else { return Vec::new() };
    let of = |wanted: Kind| counts.kinds.iter().filter(move |(kind, _)| *kind == wanted);
    let plain = |wanted: Kind| of(wanted).map(|(_, count)| (Vec::new(), *count as f64)).collect::<Vec<_>>();
    let how = |kind: Kind| {
        of(kind)
            .map(move |(_, count)| (vec![("how", kind.word().to_owned())], *count as f64))
            .collect::<Vec<_>>()
    };
    let ends = [Kind::Released, Kind::Reconciled, Kind::Lost].into_iter().flat_map(how);
    let refusal =
        |(code, count): &(fgpu_spec::Code, u64)| (vec![("code", code.as_str().to_owned())], *count as f64);
    vec![
        counter("fgpu_grants", "Shares that were granted since the boot", plain(Kind::Granted)),
        counter(
            "fgpu_releases",
            "Shares that came back since the boot: released by their runtime, reconciled since the holder was gone, or \
             lost in a rebuild",
            ends,
        ),
        counter("fgpu_resizes", "Shares that were changed since the boot", plain(Kind::Resized)),
        counter(
            "fgpu_refusals",
            "Requests that were refused since the boot, by the code of the error",
            counts.refusals.iter().map(refusal),
        ),
        counter(
            "fgpu_exceeded",
            "How often fgpu-watch saw a container rise above its memory since the boot",
            plain(Kind::Exceeded),
        ),
    ]
}
