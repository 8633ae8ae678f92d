//! The invocations. In all of them `$R` is the runtime, `$B` the bundle, `$I` the container, `$L` the log
//! file and `$W` the working directory.

use super::specs::{self, ODD, Spec};

/// Invocations, one after the other.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) spec: Spec,
    pub(super) steps: Vec<String>,
}

fn case(name: &'static str, steps: &[&str]) -> Case {
    Case { name, spec: specs::good, steps: steps.iter().map(|&step| step.to_owned()).collect() }
}

const CREATE: &str = "$R create --bundle $B $I";
const RUN: &str = "$R run --bundle $B $I";
const DELETE: &str = "$R delete --force $I";
const LOGGED: &str = "$R --log $L --log-format json";

/// All of them for a runtime.
pub(super) fn all(runtime: &str) -> Vec<Case> {
    let odd = ODD.iter().map(|&(name, spec)| Case { spec, ..case(name, ODD_STEPS) });
    let lines =
        LINES.iter().copied().chain(if runtime == "crun" { CRUN_LINES } else { RUNC_LINES }.iter().copied());
    let lines = lines.map(|line| case("a command line", &[line, DELETE]));
    odd.chain(lines).chain(of_any_node()).chain(files()).chain(surroundings()).collect()
}

const ODD_STEPS: &[&str] = &[
    CREATE,
    DELETE,
    "$R --log $L run --bundle $B $I",
    "$R --log $L --log-format json create --bundle $B $I",
    DELETE,
];

/// Lives of containers.
pub(super) fn of_any_node() -> Vec<Case> {
    let life = case(
        "a life",
        &[
            "$R create --bundle $B --pid-file $W/pid $I",
            "$R state $I",
            CREATE,
            "test $(cat $W/pid) -gt 1",
            "$R delete $I",
            "$R kill $I NOSUCH",
            "$R start $I",
            "while $R state $I | grep -q running; do sleep 0.1; done",
            "$R start $I",
            "$R state $I",
            "$R delete $I",
            "$R delete $I",
            DELETE,
        ],
    );
    let foreground = case("in the foreground", &[RUN, "$R state $I", RUN, "$R --debug state $I"]);
    let logged = case(
        "with a log",
        &[
            &format!("{LOGGED} create --bundle $B $I"),
            &format!("{LOGGED} delete $I"),
            &format!("{LOGGED} kill $I KILL"),
            &format!("{LOGGED} delete --force $I"),
            &format!("{LOGGED} delete $I"),
        ],
    );
    vec![life, foreground, logged]
}

/// What else than a file config.json can be.
fn files() -> Vec<Case> {
    let made = |name, make: &str| {
        let steps = [CREATE, DELETE, RUN, DELETE].map(|step| format!("{make}\n{step}"));
        Case { name, spec: specs::missing, steps: steps.into() }
    };
    vec![
        made("a folder", "mkdir -p $B/config.json"),
        made("a link", "ln -sf ../good.json $B/config.json"),
        made("a link to nothing", "ln -sf nosuch $B/config.json"),
        made("a link to itself", "ln -sf config.json $B/config.json"),
        made("a device", "ln -sf /dev/null $B/config.json"),
        made("a file that nobody may read", "install -m 0 $W/good.json $B/config.json"),
        made(
            "a pipe",
            // A pipe of its own for each, so that nobody else reads what a writer did not get rid of. crun
            // reads it twice: the second writer comes when the first reader has left.
            "P=$W/pipe-$$; mkfifo $P; ln -sf $P $B/config.json; for once in 1 2; do \
             timeout 10 dd if=$W/good.json of=$P conv=nocreat,notrunc status=none; \
             while ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q $P; do sleep 0.1; done; done &",
        ),
        case("a bundle that is a file", &["$R create --bundle $W/good.json $I"]),
        case("a bundle that is a link", &["ln -s bundle link; $R create --bundle link $I", DELETE]),
        case("where the bundle is", &["cd $B; $R create $I", DELETE, "cd $B; $R run $I"]),
        case(
            "where nothing is",
            &["mkdir d; cd d; rmdir ../d; $R create $I", "mkdir d; cd d; rmdir ../d; $R delete $I"],
        ),
    ]
}

/// What a runtime inherits.
fn surroundings() -> Vec<Case> {
    let run = |before: &str, words: &str| format!("{before} $R run --bundle $B {words} $I");
    let looks = |name, command: &str, steps: Vec<String>| {
        let edit = format!(
            "sed 's|echo out .0 .*exit 3|{command}|' $W/good.json >$B/config.json && grep -q '{}' $B/config.json",
            &command[..command.len().min(6)]
        );
        let steps = std::iter::once(edit).chain(steps).collect();
        Case { name, spec: specs::good, steps }
    };
    vec![
        looks("standard input", "cat; exit 4", vec![run("echo in |", "")]),
        looks("signals", "grep ^Sig[BIC] /proc/self/status", vec![
            run("", ""),
            run("trap '' PIPE;", ""),
            // Not HUP and INT: runc 1.3 stops ignoring them while it starts the container, now before and now
            // after.
            run("trap '' CHLD TERM USR1;", ""),
            run("env --block-signal=TERM --block-signal=USR1 --ignore-signal=PIPE", ""),
        ]),
        looks("a signal", "kill -9 $$", vec![run("", "")]),
        looks("descriptors", "ls /proc/self/fd; cat /proc/self/fd/3", vec![
            run("exec 3<$W/good.json;", ""),
            run("exec 3<$W/good.json;", "--preserve-fds 1"),
            run("exec <&-;", ""),
            run("exec >&-;", ""),
            run("exec 2>&-;", ""),
        ]),
        looks("sockets", "echo $LISTEN_FDS $LISTEN_PID; ls /proc/self/fd", vec![
            "sh -c 'exec 3<$0; LISTEN_FDS=1 LISTEN_PID=$$ exec $1 run --bundle $2 $3' $W/good.json $R $B $I".to_owned(),
            run("exec 3<$W/good.json; LISTEN_FDS=1 LISTEN_PID=1", ""),
        ]),
        looks("limits", "ulimit -n; umask; cat /proc/self/oom_score_adj", vec![
            run("", ""),
            run("ulimit -n 100; umask 077; echo 500 >/proc/self/oom_score_adj;", ""),
        ]),
        looks("who", "id", vec![run("", ""), run("chmod 755 $W $B; setpriv --reuid 1000 --regid 1000 --clear-groups", "")]),
        looks("the environment", "env", vec![run("XDG_RUNTIME_DIR=$W/xdg A=b", ""), run("env -i", ""), run("env -i HOME=/x PATH=/usr/sbin:/usr/bin:/sbin:/bin", "")]),
    ]
}

/// Command lines that both runtimes are given.
const LINES: &[&str] = &[
    "$R",
    "$R ''",
    "$R --help",
    "$R --version",
    "$R -v",
    "$R nosuch",
    "$R --nosuch",
    "$R --nosuch create --bundle $B $I",
    "$R -x",
    "$R features",
    "$R list",
    "$R list -q",
    "$R list --format json",
    "$R list --format nosuch",
    "$R create",
    "$R create --help",
    "$R run",
    "$R run --help",
    "$R delete",
    "$R delete --help",
    "$R start",
    "$R state",
    "$R kill",
    "$R exec",
    "$R ps",
    "$R pause",
    "$R resume",
    "$R update",
    "$R spec --nosuch",
    "$R checkpoint nosuch",
    "$R restore",
    "$R create --nosuch --bundle $B $I",
    "$R create --bundle $B --nosuch=1 $I",
    "$R create --bundle '' $I",
    "$R create --bundle= $I",
    "$R run --bundle '' $I",
    "$R create --bundle",
    "$R create --bundle $B",
    "$R create --bundle $B ''",
    "$R create --bundle $B $I two",
    "$R create --bundle $B a/b",
    "$R create --bundle $B ../$I",
    "$R create --bundle $B 'a b'",
    "$R create --bundle $B .",
    "$R create --bundle $B \"$(printf '\\377')\"",
    "$R create --bundle \"$(printf '\\377')\" $I",
    "$R create --bundle $W/nosuch $I",
    "$R create --bundle /dev/null $I",
    "$R create --bundle ./bundle/../bundle/. $I",
    "$R create --bundle $B --bundle $W/nosuch $I",
    "$R create --bundle $B --pid-file $W/nosuch/pid $I",
    "$R create --bundle $B --pid-file '' $I",
    "$R create --bundle $B --pid-file $B $I",
    "$R create --bundle $B --console-socket $W/nosuch $I",
    "$R create --bundle $B --preserve-fds x $I",
    "$R create --bundle $B --preserve-fds 9 $I",
    "$R create --bundle $B -- $I",
    "$R --bundle $B create $I",
    "cd $B; $R --root '' create $I; $R --root '' delete --force $I",
    "$R --root $W/root create --bundle $B $I; $R --root $W/root delete --force $I",
    "$R --root /dev/null/x create --bundle $B $I",
    "$R --log $W/nosuch/log create --bundle $B $I",
    "$R --log '' create --bundle $B $I",
    "$R --log-format nosuch create --bundle $B $I",
    "$R --log $L --log-format nosuch create --bundle $B $I",
    "$R --log $L create --bundle $W/nosuch $I",
    "$R --log $L --log-format json create --bundle $W/nosuch $I",
    "$R --log $L --log-format json run --nosuch --bundle $B $I",
    "$R --log $L --log-format json delete nosuch",
    "$R --log $L --log-format text delete nosuch",
    "$R --log $L --log-format json state nosuch",
    "$R --systemd-cgroup create --bundle $B $I",
    "$R --rootless nosuch create --bundle $B $I",
    "$R delete nosuch",
    "$R delete --force nosuch",
    "$R delete ''",
    "$R delete a/b",
    "$R delete .",
    "$R delete $I two",
    "$R delete --nosuch $I",
    "$R --root $W/nosuch delete nosuch",
    "$R --root $W/nosuch delete --force nosuch",
    "$R kill nosuch",
    "$R kill nosuch NOSUCH",
    "$R state nosuch",
    "$R start nosuch",
    "$R exec nosuch true",
    "$R ps nosuch",
    "$R pause nosuch",
    "$R resume nosuch",
    "$R update --pids-limit 10 nosuch",
    "$R run -d --bundle $B --pid-file $W/pid $I; test $(cat $W/pid) -gt 1; \
     while $R state $I | grep -q running; do sleep 0.1; done",
    "$R run --keep --bundle $B $I; $R state $I; $R delete $I",
    "$R run --no-pivot --bundle $B $I",
    "$R run --no-new-keyring --bundle $B $I",
];

const RUNC_LINES: &[&str] = &[
    // crun leaves a cgroup behind, and says something else the second time.
    "$R restore --bundle $B --image-path $W/nosuch $I",
    "$R help",
    "$R help create",
    "$R -root $W/root state nosuch",
    "$R create $I --bundle $B",
    "$R run -d=x --bundle $B $I",
    "$R --debug=x state nosuch",
    "$R events nosuch",
];

const CRUN_LINES: &[&str] = &[
    "$R create --config $W/good.json --bundle $B $I",
    "$R create --config $W/nosuch --bundle $B $I",
    "$R create -f '' --bundle $B $I",
    "$R create -f $W/good.json -b $W $I",
    "$R delete --regex 'nosuch.*'",
    "$R --log file:$L delete nosuch",
    "$R --log syslog:x delete nosuch",
    "$R --cgroup-manager nosuch create --bundle $B $I",
    "$R --usage",
    "$R create --usage",
    "cat $W/good.json | $R create --config /dev/stdin --bundle $B $I",
];
