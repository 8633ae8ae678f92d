//! What a refusal was decided from.

use fgpu_spec::{Inventory, Request};

use crate::capacity::Holder;
use crate::decision::Decision;
use crate::{Rules, Slot};

/// A request that is refused, and what it was decided from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) decision: &'a Decision,
    pub(crate) request: &'a Request,
    pub(crate) rules: &'a Rules,
    pub(crate) inventory: &'a Inventory,
    /// The holders of each GPU and what they hold, in the inventory's order.
    pub(crate) holders: &'a [Vec<Holder>],
    /// What lies on each GPU in MIG mode, in the inventory's order.
    pub(crate) slots: &'a [Vec<Slot>],
}
