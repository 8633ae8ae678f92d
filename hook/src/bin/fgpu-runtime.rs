//! An OCI runtime that gives a container its share of a GPU and hands everything else to runc or crun.

#![deny(clippy::print_stderr)]

// musl's own allocator is slow: it costs a create 0.4 ms.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match fgpu_hook::runtime::run(&words) {
        Ok(ended) => ended.relay(),
        Err(error) => {
            fgpu_hook::say(error);
            std::process::exit(1);
        }
    }
}
