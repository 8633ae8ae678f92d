//! What was last seen of the GPUs: those that serve nothing, and those that others use.

use fgpu_driver::health::{FILE, FORMAT};
use fgpu_spec::{Health, Inventory, Outsider, escape_for_display};

use super::Diagnosis;
use super::node::Node;
use crate::quantity::bytes;

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let read = |name: &str| std::fs::read(node.state_dir().join(name)).unwrap_or_default();
    let Ok(health) = serde_json::from_slice::<Health>(&read(FILE)) else { return };
    let boot = node.text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if health.version != FORMAT || health.boot_id != boot.trim() {
        return;
    }
    let inventory = serde_json::from_slice::<Inventory>(&read(fgpu_driver::FILE)).ok();
    let known = |uuid: &str| {
        let all = inventory.iter().flat_map(|inventory| &inventory.gpus);
        all.into_iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.index)
    };
    for seen in &health.gpus {
        let Some(index) = known(&seen.uuid) else { continue };
        if let Some(why) = &seen.unhealthy {
            let reset = format!("nvidia-smi --gpu-reset -i {index}   # nobody may use it then; or reboot");
            diagnosis.error(
                "gpu-unhealthy",
                format!("GPU {index} serves nothing: {why}"),
                &["dmesg | grep -E 'NVRM|Xid'", &reset, "fgpu inventory --refresh"],
            );
        }
        // Their pids are the initial namespace's; one that has ended holds nothing.
        let outsiders: Vec<&Outsider> = seen.outsiders.iter().filter(|one| lives(node, one)).collect();
        if seen.foreign == 0 || (outsiders.is_empty() && !seen.outsiders.is_empty()) {
            continue;
        }
        let who: Vec<_> = outsiders
            .iter()
            .map(|one| format!("pid {} {}", one.pid, escape_for_display(&one.name)))
            .collect();
        let who = if who.is_empty() { "the driver does not say which".to_owned() } else { who.join(", ") };
        let pids: Vec<_> = outsiders.iter().map(|one| one.pid.to_string()).collect();
        let look = match pids.is_empty() {
            true => "nvidia-smi".to_owned(),
            false => format!("ps -o pid,user,cgroup,args -p {}", pids.join(",")),
        };
        let what = format!(
            "{} of GPU {index} is held by processes outside fgpu ({who}), and can be granted to nobody",
            bytes(seen.foreign)
        );
        let mend = "end them, or start them with a share: fgpu run, or an annotation on their container";
        diagnosis.warn("foreign-use", what, &[&look, mend]);
    }
}

fn lives(node: &Node, one: &Outsider) -> bool {
    node.text(&format!("/proc/{}/comm", one.pid)).is_some_and(|name| name.trim_end() == one.name)
}
