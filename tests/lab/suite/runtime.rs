//! `fgpu-runtime` with the real runc and crun: whatever way their command line is written, the lease knows
//! the container's init.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use fgpu_lab::bundle::{self, bundle, runtimes};
use fgpu_lab::command::{Output, run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::{node, process};

pub(crate) const TESTS: &[Test] = &[
    Test::once("runtime::every_spelling_keeps_its_share", every_spelling_keeps_its_share),
    Test::once("runtime::a_runtime_by_another_name_keeps_its_share", another_name_keeps_its_share),
    Test::once("runtime::meaningless_options_are_refused", meaningless_options_are_refused),
    Test::once("runtime::a_delete_frees_only_what_it_deleted", a_delete_frees_only_what_it_deleted),
    Test::once(
        "runtime::a_runtime_that_is_killed_may_leave_a_container",
        a_killed_runtime_may_leave_a_container,
    ),
    Test::once(
        "runtime::an_init_that_nobody_names_keeps_its_share",
        an_init_that_nobody_names_keeps_its_share,
    ),
];

/// Where command lines are run.
const WORK: &str = "/run/lab/folder";

/// How a container is made: the environment, the folder (`B` is the bundle's, `W` is another), the words of
/// `fgpu-runtime`, and where the real runtime then has its state. In all of them `B` is the bundle, `I` the
/// id.
struct Spelling {
    environment: &'static str,
    folder: &'static str,
    words: &'static str,
    root: &'static str,
}

const fn plain(words: &'static str) -> Spelling {
    Spelling { environment: "", folder: WORK, words, root: "" }
}

const RUNC: &[Spelling] = &[
    plain("create --bundle B I"),
    plain("create I --bundle B"),
    plain("create I -b B"),
    plain("create -b=B I"),
    plain("create --bundle=B --pid-file=/run/lab/folder/pid I"),
    plain("create --pid-file pid --bundle B I"),
    plain("create I --pid-file ./pid --bundle B"),
    plain("create -pid-file pid -bundle B -- I"),
    plain("create --bundle ../bundles/I I"),
    plain("run -d -b B I"),
    plain("run --detach=true I --bundle B"),
    plain("run -d=1 --bundle B --no-pivot=false I"),
    plain("--log /run/lab/folder/log --log-format json --debug create --bundle B I"),
    Spelling { environment: "", folder: "B", words: "create I", root: "" },
    Spelling { environment: "", folder: "B", words: "run --detach I", root: "" },
    Spelling {
        environment: "",
        folder: WORK,
        words: "--root r create --bundle B I",
        root: "/run/lab/folder/r",
    },
    Spelling {
        environment: "",
        folder: WORK,
        words: "-root=/run/lab/q create --bundle B I",
        root: "/run/lab/q",
    },
    Spelling {
        environment: "XDG_RUNTIME_DIR=/run/lab/xdg",
        folder: WORK,
        words: "create --bundle B I",
        root: "",
    },
    Spelling {
        environment: "XDG_RUNTIME_DIR=/run/lab/xdg",
        folder: WORK,
        words: "run -d --bundle B I",
        root: "",
    },
];

const CRUN: &[Spelling] = &[
    plain("create --bundle B I"),
    plain("create -bB I"),
    plain("create -b B -- I"),
    plain("create --bun=B I"),
    plain("create --b B --pid-f=/run/lab/folder/pid I"),
    plain("create --pid-file pid --bundle B I"),
    plain("create --pid-file=./pid -b../bundles/I I"),
    plain("run -dbB I"),
    plain("run -db B --pid-file pid I"),
    plain("run --det --bundle B I"),
    plain("create --config /run/lab/folder/other.json --bundle B I"),
    plain("create -fother.json -bB I"),
    plain("run -df other.json --bundle B I"),
    plain("--cgroup-m cgroupfs --debug create --bundle B I"),
    plain("--log=/run/lab/folder/log --log-f=json create --bundle B I"),
    plain("create --pid-file /dev/fd/9 --bundle B I"),
    Spelling { environment: "", folder: "B", words: "create I", root: "" },
    Spelling { environment: "", folder: "B", words: "run -d I", root: "" },
    Spelling { environment: "", folder: WORK, words: "--root r create --bundle B I", root: "B/r" },
    Spelling { environment: "", folder: "B", words: "--root=r create I", root: "B/r" },
    Spelling {
        environment: "XDG_RUNTIME_DIR=/run/lab/xdg",
        folder: WORK,
        words: "create --bundle B I",
        root: "/run/lab/xdg/crun",
    },
    Spelling {
        environment: "XDG_RUNTIME_DIR=/run/lab/xdg",
        folder: WORK,
        words: "run -dbB I",
        root: "/run/lab/xdg/crun",
    },
    Spelling {
        environment: "XDG_RUNTIME_DIR=/run/lab/xdg",
        folder: "B",
        words: "create --pid-file pid I",
        root: "/run/lab/xdg/crun",
    },
];

fn spellings(runtime: &str) -> &'static [Spelling] {
    if runtime == "crun" { CRUN } else { RUNC }
}

/// A bundle that asks for three quarters of GPU 0, in a folder of its own.
struct Made {
    id: String,
    path: String,
}

impl Made {
    #[track_caller]
    fn new(asks: bool) -> Self {
        let made = bundle("runc", "busybox");
        let made =
            if asks { made.annotation("fgpu/fraction", "0.75").annotation("fgpu/device", "0") } else { made };
        write(&made.path.join("config.json"), &made.spec.to_string());
        Self { id: made.id.clone(), path: made.path.to_string_lossy().into_owned() }
    }

    fn filled(&self, text: &str) -> String {
        // No word of the lab has a capital B, I or W of its own beside these.
        text.replace('B', &self.path).replace('I', &self.id)
    }

    /// Runs `fgpu-runtime`. A container that is made keeps its streams, so they are files.
    #[track_caller]
    fn call(&self, spelling: &Spelling) -> Output {
        run(["mkdir", "-p", WORK, "/run/lab/xdg"]).ok();
        let (folder, words) = (self.filled(spelling.folder), self.filled(spelling.words));
        let line = format!(
            "cd {folder} && exec env {} fgpu-runtime {words} >{path}/out 2>{path}/err 9>{path}/nine",
            spelling.environment,
            path = self.path
        );
        let mut output = shell(&line);
        let read = |name: &str| fs::read_to_string(Path::new(&self.path).join(name)).unwrap_or_default();
        (output.stdout, output.stderr) = (read("out"), read("err"));
        output
    }

    /// crun's `--config`: the spec is in another file, and the bundle's own asks for nothing.
    #[track_caller]
    fn move_spec(&self) {
        run(["mkdir", "-p", WORK]).ok();
        let own = Path::new(&self.path).join("config.json");
        fs::copy(&own, Path::new(WORK).join("other.json")).expect("the spec is there");
        let text = fs::read_to_string(&own).expect("the spec is there");
        write(&own, &text.replace("fgpu/", "other/"));
    }

    /// Ends its init behind everybody's back.
    #[track_caller]
    fn end(&self, runtime: &str, root: &str) {
        for init in node::inits() {
            process::kill(init);
            wait_until("the end of an init", || !process::lives(init));
        }
        let root = self.filled(root);
        let option = if root.is_empty() { String::new() } else { format!("--root {root}") };
        shell(&format!("cd / && {runtime} {option} delete --force {}", self.id));
    }
}

#[track_caller]
fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The container runs and holds its share, whoever reconciles; and when it has ended nothing of it is left.
#[track_caller]
fn assert_keeps_its_share(made: &Made, runtime: &str, spelling: &Spelling) {
    let about = format!("{runtime}: {} {}", spelling.environment, spelling.words);
    let output = made.call(spelling);
    assert_eq!(output.status, 0, "{about}: {}", output.story());
    let held = || node::leases().into_iter().map(|lease| lease.id).collect::<Vec<_>>();
    assert_eq!(held(), [&*made.id], "{about}");
    // Somebody else who asks for more than is left: what can be freed is freed before that is refused.
    let other = Made::new(true);
    let refused = other.call(&plain("create --bundle B I"));
    assert!(refused.refused().contains("no-capacity"), "{about}: {}", refused.story());
    run(["fgpu", "gc"]).ok();
    assert_eq!(held(), [&*made.id], "{about}: the share of a container that runs was freed");
    let inits = node::inits();
    assert!(matches!(inits[..], [init] if process::lives(init)), "{about}: {inits:?}");
    made.end(runtime, spelling.root);
    run(["fgpu", "gc"]).ok();
    assert_eq!(held(), [""; 0], "{about}: the share of a container that is gone was kept");
    run(["rm", "-rf", WORK, "/run/lab/xdg", "/run/lab/q"]).ok();
}

fn every_spelling_keeps_its_share() {
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [{runtime:?}]"));
        for spelling in spellings(runtime) {
            let made = Made::new(true);
            if spelling.words.contains("other.json") {
                made.move_spec();
            }
            assert_keeps_its_share(&made, runtime, spelling);
        }
    }
}

/// Links, copies and wrappers.
fn another_name_keeps_its_share() {
    run(["mkdir", "-p", "/run/lab/crio"]).ok();
    for runtime in runtimes() {
        let program = run(["sh", "-c", &format!("readlink -f $(command -v {runtime})")]).ok().to_owned();
        let copies = [format!("/run/lab/crio/{runtime}"), format!("/run/lab/crio/{runtime}.real")];
        for copy in &copies {
            fs::copy(&program, copy).expect("a copy of the runtime");
        }
        let (link, wrapper) = ("/run/lab/crio/oci-link", "/run/lab/crio/oci-wrapper");
        let _ = fs::remove_file(link);
        symlink(&program, link).expect("a link to the runtime");
        write(Path::new(wrapper), &format!("#!/bin/sh\nexec {program} \"$@\"\n"));
        fs::set_permissions(wrapper, fs::Permissions::from_mode(0o755)).expect("a program");
        for name in [&copies[0], &copies[1], link] {
            let _configured = node::configure(&format!("runtimes = [{name:?}]"));
            for spelling in
                spellings(runtime).iter().filter(|spelling| !spelling.words.contains("other.json")).step_by(3)
            {
                assert_keeps_its_share(&Made::new(true), name, spelling);
            }
        }
        // Nobody can tell what it is.
        let _configured = node::configure(&format!("runtimes = [{wrapper:?}]"));
        for words in [
            "create --bundle B I",
            "create --pid-file /run/lab/folder/pid --bundle B I",
            "run --detach --bundle B I",
        ] {
            assert_keeps_its_share(&Made::new(true), wrapper, &plain(words));
        }
        let refused = Made::new(true).call(&plain("create --pid-file pid --bundle B I"));
        assert!(refused.refused().contains("fgpu: internal"), "{}", refused.story());
        assert_eq!(node::leases(), []);
    }
}

/// Refused with a code if the container asks for a share; else it is the real runtime that says what is
/// wrong.
fn meaningless_options_are_refused() {
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [{runtime:?}]"));
        for (folder, words) in [
            (WORK, "create --newer option --bundle B I"),
            (WORK, "create --newer --bundle=B I"),
            (WORK, "--newer create --bundle B I"),
            (WORK, "run -x --bundle B I"),
            (WORK, "create --bundle B I two"),
            (WORK, "create --bundle B"),
            (WORK, "create I --pid-file --bundle B"),
            ("B", "create --newer I"),
            ("B", "create"),
        ] {
            let spelling = Spelling { environment: "", folder, words, root: "" };
            let made = Made::new(true);
            let refused = made.call(&spelling);
            assert!(
                refused.refused().starts_with("fgpu: internal: "),
                "{runtime} {words}: {}",
                refused.story()
            );
            assert_eq!(node::leases(), [], "{runtime} {words}");
            // Exactly what the real runtime says.
            let other = Made::new(false);
            let ours = other.call(&spelling);
            let line = other.filled(words);
            let theirs = shell(&format!("cd {} && {runtime} {line} 2>&1 >/dev/null", other.filled(folder)));
            assert_eq!(ours.status, theirs.status, "{runtime} {words}: {}", ours.story());
            assert!(!ours.stderr.contains("fgpu"), "{runtime} {words}: {}", ours.story());
        }
    }
}

/// Two containers of one id, in two state directories.
fn a_delete_frees_only_what_it_deleted() {
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [{runtime:?}]"));
        let made = Made::new(true);
        made.call(&plain("create --bundle B I")).ok();
        let lease = node::only_lease();
        for other in [
            plain("--root /run/lab/q delete --force I"),
            Spelling {
                environment: "XDG_RUNTIME_DIR=/run/lab/xdg",
                ..plain("--root /run/lab/xdg/crun delete --force I")
            },
            Spelling { environment: "", folder: "B", words: "--root r delete --force I", root: "" },
        ] {
            made.call(&other);
            assert_eq!(node::only_lease(), lease, "{runtime}: {}", other.words);
        }
        if *runtime == "crun" {
            let elsewhere =
                Spelling { environment: "XDG_RUNTIME_DIR=/run/lab/xdg", ..plain("delete --force I") };
            made.call(&elsewhere);
            assert_eq!(node::only_lease(), lease, "{runtime}: {}", elsewhere.words);
        }
        made.call(&plain("delete --force I")).ok();
        assert_eq!(node::leases(), [], "{runtime}");
    }
}

/// A `run` in the foreground that is killed leaves its container, or takes it along; the lease knows.
fn a_killed_runtime_may_leave_a_container() {
    for runtime in runtimes() {
        let _configured = node::configure(&format!("runtimes = [{runtime:?}]"));
        for killed in ["the runtime", "fgpu-runtime"] {
            let made = Made::new(true);
            let line = format!("cd {} && exec fgpu-runtime run {} >out 2>err </dev/null", made.path, made.id);
            let mut child = std::process::Command::new("sh").args(["-c", &line]).spawn().expect("a shell");
            let pid_file = format!("/run/fgpu/containers/{}/init.pid", {
                wait_until("a lease", || !node::leases().is_empty());
                node::only_lease().nonce
            });
            let init = || fs::read_to_string(&pid_file).ok().and_then(|pid| pid.trim().parse::<i32>().ok());
            wait_until("a pid file", || init().is_some());
            let init = init().expect("it was there");
            if killed == "the runtime" {
                let parent = i32::try_from(child.id()).expect("a pid");
                let serving = process::serving(&made.id);
                let real = serving.iter().find(|process| process::parent(process.pid) == Some(parent));
                assert!(process::kill(real.expect("the real runtime").pid));
            } else {
                child.kill().expect("it is our child");
            }
            child.wait().expect("it is our child");
            wait_until("the end of a runtime", || {
                process::serving(&made.id).iter().all(|one| one.pid == init)
            });
            run(["fgpu", "gc"]).ok();
            let held = node::leases().len();
            assert_eq!(held, usize::from(process::lives(init)), "{runtime}, {killed} was killed");
            process::kill(init);
            wait_until("the end of an init", || !process::lives(init));
            made.end(runtime, "");
            run(["fgpu", "gc"]).ok();
            assert_eq!(node::leases(), [], "{runtime}, {killed} was killed");
        }
    }
}

/// A wrapper that drops what it does not know, `--pid-file` among it: the runtime is asked. Where it does not
/// answer either, the share stays until the container is deleted.
fn an_init_that_nobody_names_keeps_its_share() {
    run(["mkdir", "-p", "/run/lab/crio"]).ok();
    for (runtime, answers) in [("runc", true), ("crun", true), ("runc", false), ("crun", false)] {
        let wrapper = format!("/run/lab/crio/deaf-{answers}-{runtime}");
        let state = if answers { "" } else { "state) exit 1;; " };
        let script = format!(
            "#!/bin/sh\ncase $1 in {state}create) shift 3; exec {runtime} create \"$@\";; esac\nexec {runtime} \"$@\"\n"
        );
        write(Path::new(&wrapper), &script);
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("a program");
        // Its name says nothing, so that no state file is known.
        let hidden = format!("/run/lab/crio/deaf{}", u8::from(answers));
        fs::rename(&wrapper, &hidden).expect("a name");
        let _configured = node::configure(&format!("runtimes = [{hidden:?}]"));
        let made = Made::new(true);
        let output = made.call(&plain("create --bundle B I"));
        assert_eq!(output.status, 0, "{}", output.story());
        let lease = node::only_lease();
        assert_eq!(node::inits().len(), usize::from(answers), "{runtime}");
        let gc = run(["fgpu", "gc"]);
        assert_eq!(node::only_lease(), lease, "{runtime}: {}", gc.story());
        if !answers {
            assert!(output.stderr.contains("does not say which process it is"), "{}", output.story());
        }
        made.call(&plain("delete --force I")).ok();
        assert_eq!(node::leases(), [], "{runtime}, {answers}");
    }
    bundle::remove_all();
}
