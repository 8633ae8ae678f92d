//! NVIDIA's Container Toolkit: a limit of the container's memory, as a variable of its environment.

use super::whole;
use crate::request::{MemoryAsk, Request};
use crate::{Code, Error, escape_for_display};

pub(super) const LIMIT: &str = "NVIDIA_GPU_MEMORY_LIMIT";

impl Request {
    /// The request with no more memory than the container's environment wants: `NVIDIA_GPU_MEMORY_LIMIT`, in
    /// MiB of each GPU. An empty value counts as not set; of two the last counts, as in a runtime.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] for a value that is no number of MiB.
    pub fn within_env(mut self, env: &[String]) -> Result<Self, Error> {
        let value = |variable: &String| {
            variable.strip_prefix(LIMIT).and_then(|rest| rest.strip_prefix('=')).map(str::to_owned)
        };
        let last = env.iter().filter_map(value).next_back();
        let Some(text) = last.filter(|text| !text.is_empty()) else { return Ok(self) };
        let written = format!("{LIMIT}={}", escape_for_display(&text));
        let mebibytes = whole(&text, 1, u64::MAX >> 20, "a number of MiB")
            .map_err(|reason| Error::new(Code::InvalidRequest, format!("{written} {reason}")))?;
        // A slice is as large as it is, and a request for one in words may be for a smaller one.
        let is_fixed = self.mig.as_deref().is_some_and(|profile| profile != "auto");
        let lowered = self.memory.at_most(mebibytes << 20);
        if !is_fixed && lowered != self.memory && self.memory != MemoryAsk::Bytes(0) {
            self.memory = lowered;
            self.text = format!("{} {written}", self.text);
        }
        Ok(self)
    }
}
