//! The OCI hook. `fgpu-hook poststop NONCE` releases a grant; the front ends put it into the spec they edit.
//!
//! A poststop hook that fails helps nobody: the runtime has forgotten the container by then and does not try
//! again. So it always exits 0 and says what failed; the reconciler finds what it could not release.

use std::io::IsTerminal;
use std::process::ExitCode;

use fgpu_spec::Nonce;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let code = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["poststop", nonce] => {
            poststop(nonce);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: fgpu-hook poststop NONCE");
            ExitCode::from(2)
        }
    };
    drain();
    code
}

fn poststop(nonce: &str) {
    match nonce.parse::<Nonce>() {
        Ok(nonce) => {
            if let Err(error) = fgpu_hook::release(&nonce) {
                eprintln!("{error}");
            }
        }
        Err(()) => eprintln!("fgpu-hook: {nonce:?} is no grant"),
    }
}

/// Reads the container's state, which says nothing that the arguments do not: a runtime that writes it must not meet
/// a closed pipe, or it is killed by SIGPIPE (crun 1.21). Whether all of it could be read changes nothing.
fn drain() {
    let mut state = std::io::stdin().lock();
    if !state.is_terminal() {
        let _ = std::io::copy(&mut state, &mut std::io::sink());
    }
}
