//! Links the simulated NVML; see `sim-exports`.

use std::io;

use sim_exports::Exports;

fn main() -> io::Result<()> {
    Exports { soname: "libnvidia-ml.so.1", prefix: "nvml", sources: &["src"], table: false }.generate()
}
