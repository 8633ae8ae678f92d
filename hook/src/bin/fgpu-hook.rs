//! The OCI hook. `fgpu-hook poststop NONCE` releases a grant; the front ends put it into the spec they edit.
//!
//! A poststop hook that fails helps nobody: the runtime has forgotten the container by then and does not try
//! again. So it always exits 0 and says what failed; the reconciler finds what it could not release.

use fgpu_spec::Nonce;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["poststop", nonce] => match nonce.parse::<Nonce>() {
            Ok(nonce) => {
                if let Err(error) = fgpu_hook::release(&nonce) {
                    eprintln!("{error}");
                }
            }
            Err(()) => eprintln!("fgpu-hook: {nonce:?} is no grant"),
        },
        _ => {
            eprintln!("usage: fgpu-hook poststop NONCE");
            std::process::exit(2);
        }
    }
}
