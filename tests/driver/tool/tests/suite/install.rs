//! `fgpu-sim install` where there is a node already.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use crate::fixture::Node;

/// The names in the folders of GPUs.
fn gpus(node: &Node) -> BTreeSet<OsString> {
    let folders = ["dev", "dev/nvidia-caps", "proc/driver/nvidia/gpus"];
    let entries = folders.into_iter().flat_map(|folder| std::fs::read_dir(node.path(folder)).unwrap());
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn a_smaller_node_keeps_no_gpu_of_a_larger_one() {
    let node = Node::install("h100-80-x8.toml");
    assert!(gpus(&node).contains(OsStr::new("nvidia7")));
    node.becomes("h100-80-x2.toml");
    assert_eq!(gpus(&node), gpus(&Node::install("h100-80-x2.toml")));
}
