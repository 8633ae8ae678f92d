//! Links the simulated libcuda; see `sim-exports`.

use std::io;

use sim_exports::Exports;

fn main() -> io::Result<()> {
    Exports { soname: "libcuda.so.1", prefix: "cu", table: true }.generate()
}
