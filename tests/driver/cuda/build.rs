//! Links the simulated libcuda; see `sim-exports`.

use std::io;

use sim_exports::Exports;

fn main() -> io::Result<()> {
    let newer = std::env::var_os("CARGO_FEATURE_NEWER").is_some();
    let sources: &[&str] = if newer { &["src", "newer"] } else { &["src"] };
    Exports { soname: "libcuda.so.1", prefix: "cu", table: true, sources }.generate()
}
