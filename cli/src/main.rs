//! The program `fgpu`; what it does is in the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    fgpu::main()
}
