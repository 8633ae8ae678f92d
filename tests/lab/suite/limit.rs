//! The memory limit holds, whoever asks and however.

use fgpu_lab::command::run;
use fgpu_lab::docker::{self, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

pub(crate) const TESTS: &[Test] = &[
    Test::docker("limit::program_fills_its_grant_and_no_more", program_fills_its_grant_and_no_more),
    Test::once("limit::sixteen_racers_stay_within", sixteen_racers_stay_within),
    Test::once("limit::sigkill_gives_memory_back", sigkill_gives_memory_back),
    Test::docker("limit::holds_however_the_library_is_found", holds_however_the_library_is_found),
    Test::once("limit::neighbours_do_not_take_from_each_other", neighbours_do_not_take_from_each_other),
    Test::docker("limit::musl_image_runs_what_it_ran_before", musl_image_runs_what_it_ran_before),
    Test::once("limit::read_only_container_works", read_only_container_works),
    Test::once("limit::contexts_count_for_what_they_take", contexts_count_for_what_they_take),
];

fn share(image: &str, front_end: FrontEnd) -> Run {
    docker::container(image)
        .under(front_end)
        .annotation("fgpu/fraction", "0.25")
        .annotation("fgpu/device", "0")
}

fn granted() -> u64 {
    node::gpus()[0].share(250_000)
}

/// The number behind `key` in one of `alloc`'s lines.
pub(crate) fn number(line: &str, key: &str) -> u64 {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(key));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} in {line:?}"))
}

/// Checks the last line of `alloc … fill`: out of memory (2), and not before 99% of the grant.
#[track_caller]
pub(crate) fn assert_filled(output: &str, granted: u64) {
    let line = output.lines().last().unwrap_or_default();
    assert!(line.starts_with("fill "), "{output}");
    assert_within(number(line, "bytes="), granted);
    assert_eq!(number(line, "error="), 2, "CUDA_ERROR_OUT_OF_MEMORY");
}

#[track_caller]
fn assert_within(bytes: u64, granted: u64) {
    assert!(bytes <= granted && bytes >= granted / 100 * 99, "{bytes} of {granted}");
}

fn program_fills_its_grant_and_no_more(front_end: FrontEnd) {
    let output = share("debian13", front_end)
        .command(["alloc", "fill", "take", "1048576", "free", "info", "fill"])
        .run();
    let lines: Vec<_> = output.ok().lines().collect();
    assert_filled(lines[0], granted());
    assert_eq!(lines[1], "take bytes=1048576 error=2");
    assert_eq!(lines[3], format!("info free={0} total={0} device={0}", granted()), "all of it comes back");
    assert_filled(lines[4], granted());
}

fn sixteen_racers_stay_within() {
    let output = share("debian13", FrontEnd::Shim).command(["alloc", "race", "16", "kill-all", "fill"]).run();
    let race = output.ok().lines().next().unwrap_or_default();
    assert_eq!(number(race, "processes="), 16);
    assert_within(number(race, "bytes="), granted());
    // And nothing of theirs is left.
    assert_filled(output.ok(), granted());
}

fn sigkill_gives_memory_back() {
    let output = share("debian13", FrontEnd::Shim).command(["alloc", "race", "4", "kill-one", "fill"]).run();
    let lines: Vec<_> = output.ok().lines().collect();
    let victim = number(lines[1], "bytes=");
    let got = number(lines[2], "bytes=");
    assert!(victim > 0 && got >= victim, "killed one held {victim}, afterwards there was room for {got}");
    assert!(number(lines[0], "bytes=") - victim + got <= granted());
}

fn holds_however_the_library_is_found(front_end: FrontEnd) {
    for image in ["debian13", "debian11"] {
        let container = share(image, front_end).command(["sleep", "1000"]).start();
        let library = "/usr/lib/x86_64-linux-gnu/libcuda.so";
        let version = container.exec(["sh", "-c", &format!("ls {library}.*.*")]).ok().to_owned();
        let program = "/opt/programs/alloc";
        let ways: &[&[&str]] = &[
            &["alloc", "fill"],
            &["alloc-linked", "fill"],
            &["alloc", "--proc", "fill"],
            &["alloc", "--lib", &format!("{library}.1"), "fill"],
            &["alloc", "--lib", &version, "--proc", "fill"],
            &["env", "-i", program, "fill"],
            &[
                "env",
                "-i",
                "LD_LIBRARY_PATH=/run/fgpu/driver",
                "LD_PRELOAD=",
                program,
                "--lib",
                &version,
                "fill",
            ],
            &["sh", "-c", "cd / && setsid nohup alloc fill"],
        ];
        for way in ways {
            let output = container.exec(way.iter().copied());
            assert!(output.status == 0, "{}", output.story());
            assert_filled(output.ok(), granted());
        }
        // Another user, in a program for which the loader ignores the environment.
        let user = ["docker", "exec", "--user", "65534", &container.id, "/opt/programs/alloc-setuid", "fill"];
        let output = run(user);
        assert_filled(output.ok(), granted());
        container.remove();
        node::wait_until_free();
    }
}

fn neighbours_do_not_take_from_each_other() {
    let first = share("debian13", FrontEnd::Shim).command(["alloc", "fill", "wait"]).start();
    first.wait_for_log("wait");
    let second = share("debian11", FrontEnd::Runtime).command(["alloc", "fill"]).run();
    assert_filled(second.ok(), granted());
    // The first is still full, and is told so.
    let more = first.exec(["alloc", "take", "1048576"]);
    assert_eq!(more.ok(), "take bytes=1048576 error=2");
}

/// NVIDIA's own libraries need glibc, so there is no GPU for a musl image; but nothing that ran may break.
fn musl_image_runs_what_it_ran_before(front_end: FrontEnd) {
    let script = "nodes /dev/null /dev/absent; env -i /opt/programs/nodes /dev/zero; sh -c 'id -u; ls /opt; \
        cat /etc/os-release; echo $PATH'; /lib/ld-musl-x86_64.so.1 --list /opt/programs/nodes; ls /lib /bin | wc -l";
    let command = ["sh", "-c", script];
    let before = docker::container("musl").command(command).run();
    let after = share("musl", front_end).command(command).run();
    let plain = |text: &str| -> String {
        // Where the loader put libc changes from run to run.
        text.lines().map(|line| line.split(" (0x").next().unwrap_or_default().to_owned() + "\n").collect()
    };
    assert!(before.ok().contains("/dev/null ok"), "{}", before.story());
    assert_eq!(plain(after.ok()), plain(before.ok()));
}

fn read_only_container_works() {
    let output = share("debian13", FrontEnd::Shim).options(["--read-only"]).command(["alloc", "fill"]).run();
    assert_filled(output.ok(), granted());
}

/// What the driver takes for a context is measured once, by `fgpu inventory --refresh`, and is part of the
/// grant: three processes that fill a share stand no higher in the driver's own books than was granted.
fn contexts_count_for_what_they_take() {
    const CONTEXT: u64 = 520 << 20;
    let _node = node::simulated("h100-80-x2-context.toml");
    let said = run(["fgpu", "inventory", "--refresh"]);
    assert!(said.ok().contains("  520 MiB  "), "{}", said.story());
    let command = ["sh", "-c", "alloc info; exec alloc race 3 wait"];
    let container = share("debian13", FrontEnd::Shim).command(command).start();
    let log = container.wait_for_log("wait");
    let line = |word| log.lines().find(|line| line.starts_with(word)).unwrap_or_default();
    assert_eq!(line("info"), format!("info free={} total={1} device={1}", granted() - CONTEXT, granted()));
    let (got, room) = (number(line("race"), "bytes="), granted() - 3 * CONTEXT);
    assert!(got <= room && got >= room / 100 * 99, "{got} of {room}");
    let outside = run(["/opt/fgpu-sim.dist/fgpu-sim", "status", "--json", "--root", "/opt/fgpu-sim"]);
    let outside: serde_json::Value = serde_json::from_str(outside.ok()).expect("JSON");
    assert_eq!(outside[0]["memory_used"].as_u64(), Some(got + 3 * CONTEXT));
}
