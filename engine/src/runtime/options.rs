//! The options of the runtimes that are known: of each command which there are, and which of them take a
//! value.
//!
//! The tables hold what some version has. A version that lacks an option refuses it by itself, so a larger
//! table never gives a command line another meaning.

use super::command_line::Verb;

/// One option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opt {
    /// Its long name, without dashes.
    pub(super) long: &'static str,
    /// Its one-letter name.
    pub(super) short: Option<u8>,
    pub(super) value: Value,
}

/// What follows an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing.
    None,
    /// Nothing, and the runtime only tells something: no container is made.
    Tells,
    /// A value, in the same word or in the next.
    Needed,
    /// A value in the same word, or nothing.
    Optional,
}

/// The tables of one runtime.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) global: &'static [Opt],
    create: &'static [Opt],
    run: &'static [Opt],
    restore: &'static [Opt],
    delete: &'static [Opt],
    update: &'static [Opt],
    /// Words that are commands.
    pub(super) commands: &'static [&'static str],
}

impl Tables {
    /// The options of a command that concerns us.
    pub(super) fn of(&self, verb: Verb) -> &'static [Opt] {
        match verb {
            Verb::Create => self.create,
            Verb::Run => self.run,
            Verb::Restore => self.restore,
            Verb::Delete => self.delete,
            Verb::Update => self.update,
            Verb::Other => &[],
        }
    }
}

const fn flag(long: &'static str) -> Opt {
    Opt { long, short: None, value: Value::None }
}

const fn short_flag(long: &'static str, short: u8) -> Opt {
    Opt { long, short: Some(short), value: Value::None }
}

const fn tells(long: &'static str, short: u8) -> Opt {
    Opt { long, short: Some(short), value: Value::Tells }
}

const fn takes(long: &'static str) -> Opt {
    Opt { long, short: None, value: Value::Needed }
}

const fn short_takes(long: &'static str, short: u8) -> Opt {
    Opt { long, short: Some(short), value: Value::Needed }
}

const HELP: Opt = tells("help", b'h');

/// runc 1.0 to 1.5: main.go, create.go, run.go, restore.go, delete.go, update.go.
pub(super) const RUNC: Tables = Tables {
    global: &[
        flag("debug"),
        takes("log"),
        takes("log-format"),
        takes("root"),
        takes("criu"),
        flag("systemd-cgroup"),
        takes("rootless"),
        HELP,
        tells("version", b'v'),
    ],
    create: &[
        short_takes("bundle", b'b'),
        takes("console-socket"),
        takes("pidfd-socket"),
        takes("pid-file"),
        flag("no-pivot"),
        flag("no-new-keyring"),
        takes("preserve-fds"),
        HELP,
    ],
    run: &[
        short_takes("bundle", b'b'),
        takes("console-socket"),
        takes("pidfd-socket"),
        short_flag("detach", b'd'),
        flag("keep"),
        takes("pid-file"),
        flag("no-subreaper"),
        flag("no-pivot"),
        flag("no-new-keyring"),
        takes("preserve-fds"),
        HELP,
    ],
    restore: &[
        takes("console-socket"),
        takes("image-path"),
        takes("work-path"),
        flag("tcp-established"),
        flag("ext-unix-sk"),
        flag("shell-job"),
        flag("file-locks"),
        takes("manage-cgroups-mode"),
        short_takes("bundle", b'b'),
        short_flag("detach", b'd'),
        takes("pid-file"),
        flag("no-subreaper"),
        flag("no-pivot"),
        takes("empty-ns"),
        flag("auto-dedup"),
        flag("lazy-pages"),
        takes("lsm-profile"),
        takes("lsm-mount-context"),
        HELP,
    ],
    delete: &[short_flag("force", b'f'), HELP],
    update: &[
        short_takes("resources", b'r'),
        takes("blkio-weight"),
        takes("cpu-period"),
        takes("cpu-quota"),
        takes("cpu-burst"),
        takes("cpu-share"),
        takes("cpu-rt-period"),
        takes("cpu-rt-runtime"),
        takes("cpuset-cpus"),
        takes("cpuset-mems"),
        takes("kernel-memory"),
        takes("kernel-memory-tcp"),
        takes("memory"),
        takes("memory-reservation"),
        takes("memory-swap"),
        takes("pids-limit"),
        takes("l3-cache-schema"),
        takes("mem-bw-schema"),
        takes("cpu-idle"),
        HELP,
    ],
    commands: &[
        "checkpoint",
        "create",
        "delete",
        "events",
        "exec",
        "features",
        "help",
        "h",
        "init",
        "kill",
        "list",
        "pause",
        "ps",
        "restore",
        "resume",
        "run",
        "spec",
        "start",
        "state",
        "update",
    ],
};

/// What argp itself adds to every command.
const ARGP: [Opt; 4] = [
    tells("help", b'?'),
    Opt { long: "usage", short: None, value: Value::Tells },
    takes("program-name"),
    Opt { long: "HANG", short: None, value: Value::Optional },
];

/// crun 1.8 to 1.29: crun.c, create.c, run.c, restore.c, delete.c, update.c.
pub(super) const CRUN: Tables = Tables {
    global: &[
        flag("debug"),
        takes("cgroup-manager"),
        flag("systemd-cgroup"),
        takes("log"),
        takes("log-format"),
        takes("log-level"),
        takes("root"),
        takes("rootless"),
        tells("version", b'v'),
        // A letter alone, the alias of the one before.
        Opt { long: "", short: Some(b'V'), value: Value::Tells },
        ARGP[0],
        ARGP[1],
        ARGP[2],
        ARGP[3],
    ],
    create: &[
        short_takes("bundle", b'b'),
        short_takes("config", b'f'),
        takes("console-socket"),
        takes("preserve-fds"),
        flag("no-pivot"),
        takes("pid-file"),
        flag("no-subreaper"),
        flag("no-new-keyring"),
        ARGP[0],
        ARGP[1],
        ARGP[2],
        ARGP[3],
    ],
    run: &[
        short_takes("bundle", b'b'),
        short_takes("config", b'f'),
        short_flag("detach", b'd'),
        takes("console-socket"),
        takes("preserve-fds"),
        takes("pid-file"),
        flag("keep"),
        flag("no-subreaper"),
        flag("no-new-keyring"),
        flag("no-pivot"),
        ARGP[0],
        ARGP[1],
        ARGP[2],
        ARGP[3],
    ],
    restore: &[
        short_takes("bundle", b'b'),
        takes("image-path"),
        takes("work-path"),
        flag("tcp-established"),
        flag("tcp-close"),
        flag("ext-unix-sk"),
        flag("shell-job"),
        short_flag("detach", b'd'),
        takes("pid-file"),
        takes("console-socket"),
        flag("file-locks"),
        takes("manage-cgroups-mode"),
        // Declared without a value, it takes the next word (`argp_mandatory_argument`).
        takes("network-lock"),
        takes("lsm-profile"),
        takes("lsm-mount-context"),
        ARGP[0],
        ARGP[1],
        ARGP[2],
        ARGP[3],
    ],
    delete: &[short_flag("force", b'f'), short_flag("regex", b'r'), ARGP[0], ARGP[1], ARGP[2], ARGP[3]],
    update: &[
        short_takes("resources", b'r'),
        takes("blkio-weight"),
        takes("cpu-period"),
        takes("cpu-quota"),
        takes("cpu-share"),
        takes("cpu-rt-period"),
        takes("cpu-rt-runtime"),
        takes("cpuset-cpus"),
        takes("cpuset-mems"),
        takes("kernel-memory"),
        takes("kernel-memory-tcp"),
        takes("memory"),
        takes("memory-reservation"),
        takes("memory-swap"),
        takes("pids-limit"),
        takes("l3-cache-schema"),
        takes("mem-bw-schema"),
        ARGP[0],
        ARGP[1],
        ARGP[2],
        ARGP[3],
    ],
    commands: &[],
};

/// youki 0.5 to 0.7: liboci-cli and youki's main.rs.
pub(super) const YOUKI: Tables = Tables {
    global: &[
        short_takes("log", b'l'),
        flag("debug"),
        takes("log-format"),
        short_takes("root", b'r'),
        short_flag("systemd-cgroup", b's'),
        flag("systemd-log"),
        takes("log-level"),
        tells("version", b'v'),
        HELP,
    ],
    create: &[
        short_takes("bundle", b'b'),
        short_takes("console-socket", b'c'),
        short_takes("pid-file", b'p'),
        flag("no-pivot"),
        flag("no-new-keyring"),
        takes("preserve-fds"),
        HELP,
    ],
    run: &[
        short_takes("bundle", b'b'),
        short_takes("console-socket", b'c'),
        short_takes("pid-file", b'p'),
        flag("no-subreaper"),
        flag("no-pivot"),
        flag("no-new-keyring"),
        takes("preserve-fds"),
        flag("keep"),
        short_flag("detach", b'd'),
        HELP,
    ],
    // It has no such command.
    restore: &[],
    delete: &[short_flag("force", b'f'), HELP],
    update: &[
        short_takes("resources", b'r'),
        takes("blkio-weight"),
        takes("cpu-period"),
        takes("cpu-quota"),
        takes("cpu-rt-period"),
        takes("cpu-rt-runtime"),
        takes("cpu-share"),
        takes("cpuset-cpus"),
        takes("cpuset-mems"),
        takes("kernel-memory"),
        takes("kernel-memory-tcp"),
        takes("memory"),
        takes("memory-reservation"),
        takes("memory-swap"),
        takes("pids-limit"),
        takes("l3-cache-schema"),
        takes("mem-bw-schema"),
        HELP,
    ],
    commands: &[],
};
