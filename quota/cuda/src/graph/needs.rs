//! How much memory a graph may need: the sum of its allocation nodes, as the driver lists them.

use core::ptr::{NonNull, null_mut};

use fgpu_quota_core::sys;
use fgpu_wire::MAX_GPUS;

use crate::driver::{ALLOC_NODE, AllocNode, CHILD_GRAPH, Object, SUCCESS};
use crate::real;

/// The deepest nesting of graphs; the driver allows less.
const DEPTH: u32 = 32;
/// What a graph needs, by CUDA ordinal, bytes.
pub(crate) type Needs = [u64; MAX_GPUS];

/// A list of nodes in memory of its own.
struct Nodes {
    at: NonNull<u8>,
    count: usize,
}

impl Nodes {
    /// All nodes of a graph; `None` if it has none, or if the driver does not list them.
    fn of(graph: Object) -> Option<Self> {
        let mut count = 0usize;
        // SAFETY: without a list the driver writes the number of nodes.
        let known = unsafe { real::cuGraphGetNodes(graph, null_mut(), &raw mut count) } == SUCCESS;
        if !known || count == 0 {
            return None;
        }
        let nodes = Self { at: sys::map_zeros(count.checked_mul(8)?).ok()?, count };
        // SAFETY: there is room for `count` handles, and no more are written.
        let listed =
            unsafe { real::cuGraphGetNodes(graph, nodes.at.cast().as_ptr(), &raw mut count) } == SUCCESS;
        listed.then_some(nodes)
    }

    fn each(&self) -> &[Object] {
        // SAFETY: mapped with room for `count` handles, all of them written by the driver or null.
        unsafe { core::slice::from_raw_parts(self.at.cast().as_ptr(), self.count) }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // SAFETY: the whole mapping; nothing refers into it any more.
        unsafe { sys::unmap(self.at, self.count * 8) };
    }
}

/// What a graph needs in total.
pub(crate) fn of(graph: Object) -> Needs {
    let mut needs = [0; MAX_GPUS];
    add(&mut needs, graph, 0);
    needs
}

/// Adds up what the allocation nodes of a graph and of those in it need.
fn add(needs: &mut Needs, graph: Object, depth: u32) {
    let Some(nodes) = Nodes::of(graph).filter(|_| depth < DEPTH) else { return };
    for &node in nodes.each() {
        let mut kind = 0;
        // SAFETY: the driver's own node; it writes the kind.
        if node.is_null() || unsafe { real::cuGraphNodeGetType(node, &raw mut kind) } != SUCCESS {
            continue;
        }
        if kind == CHILD_GRAPH {
            let mut child = null_mut();
            // SAFETY: the driver's own node; it writes the graph.
            if unsafe { real::cuGraphChildGraphNodeGetGraph(node, &raw mut child) } == SUCCESS {
                add(needs, child, depth + 1);
            }
        } else if kind == ALLOC_NODE {
            let mut alloc = core::mem::MaybeUninit::<AllocNode>::zeroed();
            // SAFETY: the driver fills the structure.
            if unsafe { real::cuGraphMemAllocNodeGetParams(node, alloc.as_mut_ptr()) } == SUCCESS {
                // SAFETY: zeros at first, filled now; every bit pattern is one.
                let alloc = unsafe { alloc.assume_init() };
                if let Some(need) =
                    alloc.pool.location.device().and_then(|device| needs.get_mut(device as usize))
                {
                    *need = need.saturating_add(alloc.bytes as u64);
                }
            }
        }
    }
}
