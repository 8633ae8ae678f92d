//! `fgpu setup slurm`: the node's line in slurm.conf, and drop-ins for gres.conf and plugstack.conf.

use crate::node::{Node, text};

const SLURM: &str = "etc/slurm/slurm.conf";
const GRES: &str = "etc/slurm/gres.conf";
const CONF: &str =
    "ClusterName=lab\nTaskPlugin=task/cgroup\nNodeName=n1 CPUs=4\nPartitionName=main Nodes=ALL\n";

/// A node n1 with two GPUs, and Debian's plugstack.conf.
fn node(slurm: &str) -> Node {
    let node = Node::with(SLURM, slurm);
    node.put("etc/slurm/plugstack.conf", "include /etc/slurm/plugstack.conf.d/*.conf\n");
    node.put("etc/slurm/cgroup.conf", "ConstrainDevices=yes\n");
    node.put("etc/hostname", "n1.example.org\n");
    for name in ["fgpu", "../../dev/nvidia1", "../../dev/nvidia0", "../../dev/nvidiactl"] {
        node.put(&format!("usr/bin/{name}"), "");
    }
    node
}

#[test]
fn there_and_back() {
    let plain = node(CONF);
    plain.there_and_back(&["slurm"]);
    plain.good(&["slurm"]);
    assert!(plain.text(SLURM).contains("\nNodeName=n1 CPUs=4 Gres=gpu:2,shard:200\n"));
    assert_eq!(plain.text(GRES), "Include /etc/slurm/gres.conf.d/50-fgpu.conf # fgpu setup slurm\n");
    assert_eq!(
        plain.text("etc/slurm/gres.conf.d/50-fgpu.conf"),
        "# Written by `fgpu setup slurm`.\nNodeName=n1 Name=gpu File=/dev/nvidia0\nNodeName=n1 Name=gpu File=/dev/nvidia1\n\
         NodeName=n1 Name=shard Count=100 File=/dev/nvidia0\nNodeName=n1 Name=shard Count=100 File=/dev/nvidia1\n"
    );
    assert_eq!(
        plain.text("etc/slurm/plugstack.conf.d/50-fgpu.conf"),
        "# Written by `fgpu setup slurm`.\nrequired /usr/lib/fgpu/slurm/fgpu.so\n"
    );
    let own = node(CONF);
    own.put(GRES, "AutoDetect=nvidia\n");
    own.put("etc/slurm/plugstack.conf", "required other.so\n");
    own.there_and_back(&["slurm"]);
    own.good(&["slurm"]);
    assert!(!own.text("etc/slurm/gres.conf.d/50-fgpu.conf").contains("Name=gpu"), "Slurm finds them");
    let plugstack =
        "required other.so\ninclude /etc/slurm/plugstack.conf.d/50-fgpu.conf # fgpu setup slurm\n";
    assert_eq!(own.text("etc/slurm/plugstack.conf"), plugstack);
}

#[test]
fn an_administrators_shards_stay() {
    let node = node(
        &format!("{CONF}GresTypes=gpu,shard\nPrologFlags=contain\n").replace("CPUs=4", "Gres=gpu:2,shard:16"),
    );
    node.put(GRES, "Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=16\n");
    let (slurm, gres) = (node.text(SLURM), node.text(GRES));
    node.good(&["slurm"]);
    assert_eq!((node.text(SLURM), node.text(GRES)), (slurm, gres));
    assert!(!node.path("etc/slurm/gres.conf.d").exists());
}

#[test]
fn what_would_let_jobs_around_the_limit_is_told() {
    let node = node(&CONF.replace("TaskPlugin=task/cgroup", "ProctrackType=proctrack/pgid"));
    let output = node.run(&["slurm"]);
    let warnings = text(&output.stderr);
    assert!(
        warnings.contains("ProctrackType=proctrack/cgroup") && warnings.contains("ConstrainDevices=yes"),
        "{warnings}"
    );
    assert!(Node::new().refused(&["slurm"]).contains("no configuration of Slurm"));
}
