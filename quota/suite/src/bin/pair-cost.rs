//! Prints what a pair of cuMemAlloc and cuMemFree costs over the stand-in driver, without us and with us, and
//! a call that is not limited. `cargo run --release -p fgpu-quota-suite --bin pair-cost`

use fgpu_quota_suite::{Container, gpu};

fn main() {
    let container = Container::new(&[gpu(0, 100)]);
    let program = container.program("pair", &["libcuda.so.1"], &[]);
    let measure = |library: &str| {
        let mut command = container.command(&program);
        let out =
            fgpu_quota_suite::run(command.arg("200000").env("LD_LIBRARY_PATH", container.path(library)));
        let mut numbers = out.split_whitespace().map(|number| number.parse::<f64>().expect("a number"));
        (numbers.next().expect("the pair"), numbers.next().expect("the other call"))
    };
    let (bare, bare_other) = measure("fgpu/driver");
    let (ours, ours_other) = measure("lib");
    println!("pair:  {bare:.1} ns without, {ours:.1} ns with: {:.1} ns added", ours - bare);
    println!("other: {bare_other:.2} ns without, {ours_other:.2} ns with");
}
