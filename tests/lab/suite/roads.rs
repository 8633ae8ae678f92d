//! No road around the limit that takes no effort: neither an environment, nor the data of an image, nor what
//! root of a container renames leads to a driver library that is not limited.

use std::fs;

use fgpu_lab::command::run;
use fgpu_lab::docker::{self, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

use crate::limit::assert_filled;

pub(crate) const TESTS: &[Test] = &[
    Test::docker("roads::no_environment_leads_around", no_environment_leads_around),
    Test::docker("roads::no_data_of_an_image_leads_around", no_data_of_an_image_leads_around),
    Test::docker(
        "roads::an_administrator_in_a_container_changes_no_file_of_the_node",
        an_administrator_in_a_container_changes_no_file_of_the_node,
    ),
    Test::once(
        "roads::nothing_can_be_put_in_the_place_of_the_limits",
        nothing_can_be_put_in_the_place_of_the_limits,
    ),
    Test::once(
        "roads::a_copy_of_the_driver_shows_that_a_road_would_be_seen",
        a_copy_of_the_driver_shows_that_a_road_would_be_seen,
    ),
    Test::once(
        "roads::a_volume_that_shares_its_mounts_is_refused",
        a_volume_that_shares_its_mounts_is_refused,
    ),
];

/// The driver's own libcuda, as an image may have brought it along.
const DRIVER: &str = "/opt/fgpu-sim/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01";

fn share(image: &str, front_end: FrontEnd) -> Run {
    let run = docker::container(image).under(front_end);
    run.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0")
}

fn granted() -> u64 {
    node::gpus()[0].share(250_000)
}

/// A shell command, held to the grant at its last line.
#[track_caller]
fn assert_held(run: Run, script: &str) {
    let output = run.command(["sh", "-c", script]).run();
    // What leads into our own folder, where a container's root could know a name, is refused.
    if output.status != 0 && output.stderr.contains("denied: ") && output.stderr.contains("fgpu cannot limit")
    {
        return;
    }
    assert!(output.status == 0, "{script}: {}", output.story());
    let filled: Vec<&str> = output.ok().lines().filter(|line| line.starts_with("fill ")).collect();
    assert!(!filled.is_empty(), "{}", output.story());
    filled.iter().for_each(|line| assert_filled(line, granted()));
}

fn no_environment_leads_around(front_end: FrontEnd) {
    let everywhere =
        "find / -xdev -name 'libcuda.so*' 2>/dev/null; find /run /usr /opt -name 'libcuda.so*' 2>/dev/null";
    let folders = format!("$(for file in $({everywhere}); do dirname $file; done | sort -u | tr '\\n' ':')");
    let scripts = [
        "LD_LIBRARY_PATH=/run/fgpu/driver alloc fill".to_owned(),
        "LD_PRELOAD=/run/fgpu/driver/libcuda.so.1 alloc fill 2>/dev/null".to_owned(),
        "LD_LIBRARY_PATH=/run/fgpu/driver LD_PRELOAD=libcuda.so.1 alloc fill".to_owned(),
        "LD_LIBRARY_PATH=$(dirname $(find / -name libcuda.so.1 2>/dev/null | head -n 1)) alloc fill".to_owned(),
        "LD_LIBRARY_PATH=$(dirname $(find / -name libcuda.so.1 2>/dev/null | tail -n 1)) alloc-linked fill".to_owned(),
        "LD_LIBRARY_PATH=$(dirname $(find / -name libcuda.so 2>/dev/null | tail -n 1)) alloc fill".to_owned(),
        format!("LD_LIBRARY_PATH={folders} alloc fill"),
        format!("export LD_LIBRARY_PATH={folders}; alloc-linked --proc fill"),
        // The folder, once it is looked up, has no name in it that a loader asks for.
        "LD_LIBRARY_PATH=$(echo /run/fgpu/driver-*) alloc fill".to_owned(),
        "cd /run/fgpu/driver-* && LD_LIBRARY_PATH=. alloc fill".to_owned(),
        "for file in $(find / -name 'libcuda.so*' 2>/dev/null); do LD_PRELOAD=$file alloc fill | tail -n 1; done".to_owned(),
        "for file in $(find / -name 'libcuda.so*' 2>/dev/null); do alloc --lib $file fill | tail -n 1; done".to_owned(),
        "echo /run/fgpu/driver >/etc/ld.so.conf.d/a.conf; ls -d /run/fgpu/driver-* >>/etc/ld.so.conf.d/a.conf; ldconfig 2>/dev/null; \
         env -i /opt/programs/alloc fill"
            .to_owned(),
    ];
    for image in ["debian13", "debian11"] {
        for script in &scripts {
            assert_held(share(image, front_end), script);
        }
        for option in [
            "LD_LIBRARY_PATH=/run/fgpu/driver",
            "LD_LIBRARY_PATH=/run/fgpu:/run/fgpu/driver-0",
            "LD_PRELOAD=/run/fgpu/driver/libcuda.so.1",
        ] {
            assert_held(share(image, front_end).options(["-e", option]), "alloc fill 2>/dev/null");
        }
    }
}

/// Makes an image of another one by a shell command, with the driver's library at `/driver`.
fn image(of: &str, name: &str, script: &str) {
    docker::load(of);
    let maker = docker::container(of).options(["--volume", &format!("{DRIVER}:/driver:ro")]);
    let maker = maker.command(["sh", "-ec", script]).create();
    run(["docker", "start", "--attach", &maker.id]).ok();
    run(["docker", "commit", &maker.id, name]).ok();
    maker.remove();
}

fn no_data_of_an_image_leads_around(front_end: FrontEnd) {
    const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
    let hwcaps =
        |folder: &str| format!("mkdir -p {LIBRARIES}/{folder}; cp /driver {LIBRARIES}/{folder}/libcuda.so.1");
    // Each with a copy of the driver's library, which the image's maker may have, or with links to where ours
    // lies.
    let scripts = [
        ("cache", "mkdir /opt/own; cp /driver /opt/own/libcuda.so.1; echo /opt/own >/etc/ld.so.conf.d/000.conf; ldconfig".to_owned()),
        ("old-place", "mkdir -p /run/fgpu/driver; cp /driver /run/fgpu/driver/libcuda.so.1; echo /run/fgpu/driver >/etc/ld.so.conf.d/000.conf; ldconfig; rm /run/fgpu/driver/*".to_owned()),
        ("link", format!("mkdir -p {LIBRARIES}/glibc-hwcaps/x86-64-v2 /opt/own; cp /driver /opt/own/real.so; ln -s /opt/own/real.so {LIBRARIES}/glibc-hwcaps/x86-64-v2/libcuda.so.1")),
        ("link-to-ours", format!("mkdir -p {LIBRARIES}/glibc-hwcaps/x86-64-v2; ln -s /run/fgpu/driver/libcuda.so.1 {LIBRARIES}/glibc-hwcaps/x86-64-v2/libcuda.so.1")),
        ("v2", hwcaps("glibc-hwcaps/x86-64-v2")),
        ("v3", hwcaps("glibc-hwcaps/x86-64-v3")),
        ("v4", hwcaps("glibc-hwcaps/x86-64-v4")),
        ("tls", hwcaps("tls")),
        ("haswell", hwcaps("haswell/x86_64")),
        ("all-levels", ["glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3", "tls/haswell", "haswell"].map(hwcaps).join("; ")),
        ("hwcaps-of-lib", "mkdir -p /usr/lib/glibc-hwcaps/x86-64-v2; cp /driver /usr/lib/glibc-hwcaps/x86-64-v2/libcuda.so.1".to_owned()),
        ("usual-name", format!("cp /driver {LIBRARIES}/libcuda.so.550.1; ln -s libcuda.so.550.1 {LIBRARIES}/libcuda.so.1; ldconfig")),
        ("preload", "mkdir /opt/own; cp /driver /opt/own/libcuda.so.1; echo /opt/own/libcuda.so.1 >/etc/ld.so.preload".to_owned()),
        ("compat", "mkdir -p /usr/local/cuda-12.4/compat; cp /driver /usr/local/cuda-12.4/compat/libcuda.so.1; ln -s cuda-12.4 /usr/local/cuda".to_owned()),
        ("ngc", "mkdir -p /usr/local/cuda-12.6/compat/lib.real; cp /driver /usr/local/cuda-12.6/compat/lib.real/libcuda.so.1; \
                 ln -s cuda-12.6 /usr/local/cuda; ln -s lib.real /usr/local/cuda/compat/lib".to_owned()),
        ("conda", "mkdir -p /opt/conda/cuda-compat; cp /driver /opt/conda/cuda-compat/libcuda.so.1".to_owned()),
    ];
    let environment =
        "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/cuda/compat:/opt/conda/cuda-compat:/opt/own";
    for of in ["debian13", "debian11"] {
        for (name, script) in &scripts {
            let name = format!("roads-{of}-{name}");
            image(of, &name, script);
            for (options, command) in [
                (&[][..], "env -i /opt/programs/alloc fill"),
                (&[], "alloc-linked fill"),
                (&["-e", environment], "alloc fill"),
            ] {
                let run = docker::container_of(&name).under(front_end);
                let run = run.annotation("fgpu/fraction", "0.25").annotation("fgpu/device", "0");
                assert_held(run.options(options.iter().copied()), command);
            }
            run(["docker", "rmi", "--force", &name]).ok();
        }
    }
}

/// Root of a container neither moves the folder of its limits nor has a library believe other ones.
fn nothing_can_be_put_in_the_place_of_the_limits() {
    let steps = [
        "! mv /run/fgpu /run/mine 2>/dev/null",
        "! rm -rf /run/fgpu/limits 2>/dev/null",
        "! ln -sf /tmp/limits /run/fgpu/limits 2>/dev/null",
        "! touch /run/fgpu/limits /run/fgpu/x 2>/dev/null",
        "! mv /run/fgpu/driver-* /run/fgpu/driver 2>/dev/null",
        "! mount -o remount,bind,rw /run/fgpu 2>/dev/null",
    ];
    assert_held(share("debian13", FrontEnd::Shim), &format!("{} && alloc fill", steps.join(" && ")));
    // A link above the mount is the image's, and can be exchanged. Then the limits are not the mount that was
    // made, and there is no memory.
    image("debian13", "roads-link", "rm -rf /run && mkdir /r && ln -s /r /run");
    let linked = docker::container_of("roads-link").under(FrontEnd::Shim).annotation("fgpu/fraction", "0.25");
    let container = linked.command(["sleep", "1000"]).start();
    assert_filled(container.exec(["alloc", "fill"]).ok(), granted());
    // Larger ones: the first GPU's memory is at byte 80 of the file.
    let exchange = "cp -a /r/fgpu /tmp/copy && rm /run && mkdir /run && ln -s /r/nvidia-sim /run/nvidia-sim && mv /tmp/copy /run/fgpu && \
        rm -rf /run/fgpu/driver-* && ln -s $(ls -d /r/fgpu/driver-*) /run/fgpu/ && \
        printf '\\377\\377\\377\\377\\377\\377\\377\\177' | dd of=/run/fgpu/limits bs=1 seek=80 conv=notrunc";
    container.exec(["sh", "-c", exchange]).ok();
    // The same on the file system of the real ones, the one place where the container can write there.
    let ledger = "cat /run/fgpu/limits >/tmp/limits && dd if=/tmp/limits of=/r/fgpu/ledger conv=notrunc && \
        ln -sf /r/fgpu/ledger /run/fgpu/limits";
    for step in ["true", ledger] {
        container.exec(["sh", "-c", step]).ok();
        let output = container.exec(["alloc", "fill"]);
        assert!(output.stderr.contains("not the mount that fgpu made"), "{step}: {}", output.story());
        assert!(
            !output.stdout.contains("fill bytes=") || output.stdout.contains("bytes=0 "),
            "{}",
            output.story()
        );
    }
    container.remove();
    run(["docker", "rmi", "--force", "roads-link"]).ok();
}

/// Tries to write to every file that is mounted from the node; prints those that let it.
pub(crate) const WRITE_EVERYWHERE: &str = r#"
    mount -o remount,bind,rw /run/fgpu || exit 3
    for at in $(cut -d ' ' -f 5 /proc/self/mountinfo | grep -E '^/usr/|^/run/fgpu/driver-'); do
        mount -o remount,bind,rw $at 2>/dev/null; mount -o remount,rw $at 2>/dev/null
        for try in "dd if=/dev/zero of=$at bs=1 count=1 conv=notrunc" "truncate -s 0 $at" "chmod 777 $at" "touch $at"; do
            $try 2>/dev/null && echo "$at: $try"
        done
    done; echo tried"#;

/// What the node has of what containers have mounted, by its content.
pub(crate) fn files_of_the_node() -> String {
    let sums = "find /opt/fgpu-sim/usr /usr/lib/fgpu /var/lib/fgpu -type f | sort | xargs sha256sum; ls -lR /opt/fgpu-sim/usr /var/lib/fgpu";
    run(["sh", "-c", sums]).ok().to_owned()
}

/// `CAP_SYS_ADMIN` takes the read-only flag from any mount of the container. What is below it stays
/// read-only.
fn an_administrator_in_a_container_changes_no_file_of_the_node(front_end: FrontEnd) {
    for image in ["debian13", "debian11"] {
        fs::write("/run/lab/victim", "the node's").expect("the lab's own");
        let administrator = share(image, front_end).options([
            "--volume",
            "/run/lab/victim:/usr/victim:ro",
            "--cap-add",
            "SYS_ADMIN",
            "--security-opt",
            "seccomp=unconfined",
        ]);
        let container = administrator.command(["sleep", "1000"]).start();
        let before = files_of_the_node();
        assert_filled(container.exec(["alloc", "fill"]).ok(), granted());
        assert!(container.exec(["nvidia-smi", "-L"]).ok().starts_with("GPU 0:"));
        let written = container.exec(["sh", "-c", WRITE_EVERYWHERE]);
        // An ordinary read-only volume shows that the attempt is one.
        let others = written.ok().lines().filter(|line| !line.starts_with("/usr/victim: "));
        assert_eq!(others.collect::<Vec<_>>(), ["tried"], "{}", written.story());
        assert_eq!(fs::read("/run/lab/victim").expect("is there"), b"", "{}", written.story());
        assert!(files_of_the_node() == before);
        container.remove();
        node::wait_until_free();
    }
}

/// With effort a limit can be walked around (docs/tiers.md): somebody who copies a driver into the running
/// container sees the whole GPU. So the tests above would see a road if there was one.
fn a_copy_of_the_driver_shows_that_a_road_would_be_seen() {
    let script = "mkdir /opt/own; cp /run/fgpu/driver-*/cuda /opt/own/libcuda.so.1; LD_LIBRARY_PATH=/opt/own alloc fill";
    let output = share("debian13", FrontEnd::Shim).command(["sh", "-c", script]).run();
    assert!(crate::limit::number(output.ok(), "bytes=") > 2 * granted(), "{}", output.story());
}

/// What is mounted in it would be mounted on the host: a container's folder over the node's state, our
/// libraries over its own.
fn a_volume_that_shares_its_mounts_is_refused() {
    let before = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    run(["mount", "--make-rshared", "/"]).ok();
    for front_end in [FrontEnd::Shim, FrontEnd::Runtime] {
        for volume in ["/run:/run:rshared", "/run:/var/run:shared", "/usr:/usr:rshared"] {
            let refused =
                share("debian13", front_end).options(["--volume", volume]).command(["true"]).run_plainly();
            let text = refused.refused();
            assert!(text.contains("conflict") && text.contains("shares its mounts"), "{volume}: {text}");
        }
    }
    run(["mount", "--make-rprivate", "/"]).ok();
    node::wait_until_free();
    let lines = |text: &str| text.lines().count();
    assert_eq!(lines(&fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted")), lines(&before));
}
