//! A node for tests: GPUs, requests, and a folder that stands in for procfs and cgroupfs.

use std::cell::Cell;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use fgpu_allocator::{Applicant, Host, Key, Lease, Process, Rules, Store};
use fgpu_spec::{
    Compute, Filter, Gpu, Inventory, Isolation, MemoryAsk, MigProfile, MigSlice, Policy, Request, Tier,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn inventory(gpus: u32) -> Inventory {
    let gpu = |index| Gpu {
        uuid: format!("GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd"),
        index,
        minor: index,
        model: "NVIDIA H100 80GB HBM3".into(),
        pci: format!("00000000:{index:02X}:00.0"),
        numa: None,
        total_memory: 80 * GIB,
        reserved_memory: 0,
        mig_enabled: false,
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
    };
    Inventory {
        version: 1,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: "550.163.01".into(),
        cuda_version: 12040,
        gpus: (0..gpus).map(gpu).collect(),
        driver_limits: false,
        topology: fgpu_spec::Topology::default(),
        files: vec![],
    }
}

/// The same with its first GPUs in MIG mode, which tell what an H100 tells.
pub(crate) fn mig_inventory(mig: u32, plain: u32) -> Inventory {
    let profiles: Vec<MigProfile> =
        serde_json::from_str(include_str!("../../../spec/testdata/mig-h100-80gb.json")).unwrap();
    let mut inventory = inventory(mig + plain);
    for gpu in &mut inventory.gpus[..mig as usize] {
        gpu.mig_enabled = true;
        gpu.mig_profiles = profiles.clone();
    }
    inventory
}

/// A slice of this profile.
pub(crate) fn slice(profile: &str) -> Request {
    Request {
        mig: Some(profile.to_owned()),
        isolation: Isolation::Mig,
        text: format!("fgpu/mig={profile}"),
        ..fraction(1_000_000)
    }
}

/// The tiers that could serve a request on a node that has GPUs in MIG mode.
pub(crate) fn tiers(request: &Request) -> &'static [Tier] {
    match request.isolation {
        Isolation::Mig => &[Tier::Mig],
        Isolation::Auto => &[Tier::Mig, Tier::Quota],
        _ => &[Tier::Quota],
    }
}

pub(crate) fn fraction(ppm: u32) -> Request {
    Request {
        count: 1,
        memory: MemoryAsk::Ppm(ppm),
        cores_ppm: ppm,
        compute: Compute::Cap,
        mig: None,
        places: Vec::new(),
        isolation: Isolation::Auto,
        device: Filter::default(),
        model: Filter::default(),
        policy: Policy::Pack,
        wait: Duration::ZERO,
        owner: None,
        text: format!("fgpu/fraction={}", f64::from(ppm) / 1e6),
        notes: vec![],
    }
}

pub(crate) fn key(id: &str) -> Key {
    Key { namespace: "moby".into(), id: id.into() }
}

pub(crate) fn applicant(id: &str, maker: Process) -> Applicant {
    Applicant { key: key(id), bundle: "/nowhere".into(), maker, pid_file: None, anchor: None }
}

/// Reserves a fraction of the quota tier.
pub(crate) fn reserve(
    store: &Store,
    gpus: u32,
    ppm: u32,
    applicant: &Applicant,
) -> Result<Lease, fgpu_spec::Error> {
    store.reserve(&inventory(gpus), &Rules::default(), &fraction(ppm), &[Tier::Quota], applicant)
}

/// Fails if the leases grant more of a GPU than there is.
pub(crate) fn assert_no_overcommit(leases: &[Lease], inventory: &Inventory, rules: &Rules) {
    for gpu in &inventory.gpus {
        let on = || {
            leases
                .iter()
                .flat_map(|lease| lease.grant.gpus.iter().map(move |share| (lease, share)))
                .filter(|(_, share)| share.uuid == gpu.uuid)
        };
        let memory: u64 = on().map(|(_, share)| share.memory).sum();
        let cores: u64 = on().map(|(_, share)| u64::from(share.cores_ppm)).sum();
        assert!(memory <= gpu.usable_memory(rules.reserve_memory), "GPU {}: {memory} bytes", gpu.index);
        assert!(cores <= 1_000_000, "GPU {}: {cores} ppm", gpu.index);
        let slices: Vec<_> = on().filter_map(|(_, share)| share.mig.as_ref()).collect();
        for (at, one) in slices.iter().enumerate() {
            let lies_on = |other: &&MigSlice| one.placement.overlaps(other.placement);
            assert!(!slices[..at].iter().any(lies_on), "GPU {}: {slices:?}", gpu.index);
        }
        let holders =
            leases.iter().filter(|lease| lease.grant.gpus.iter().any(|share| share.uuid == gpu.uuid));
        assert!(
            on().all(|(lease, _)| !lease.exclusive) || holders.count() == 1,
            "GPU {} is not alone",
            gpu.index
        );
    }
    for lease in leases {
        let shares = || lease.grant.gpus.iter().filter(|share| share.mig.is_none());
        let mut uuids: Vec<_> = shares().map(|share| &share.uuid).collect();
        uuids.sort();
        uuids.dedup();
        assert_eq!(uuids.len(), shares().count(), "a GPU twice in {lease:?}");
    }
    let mut nonces: Vec<_> = leases.iter().map(|lease| lease.grant.nonce).collect();
    nonces.sort();
    nonces.dedup();
    assert_eq!(nonces.len(), leases.len(), "a nonce twice");
}

/// A temporary folder, on tmpfs where there is one, as `/run` is.
pub(crate) fn folder() -> tempfile::TempDir {
    let builder = || tempfile::Builder::new().prefix("fgpu-allocator-").to_owned();
    builder().tempdir_in("/dev/shm").or_else(|_| builder().tempdir()).unwrap()
}

/// A node on which processes are files.
pub(crate) struct Node {
    dir: tempfile::TempDir,
    pub(crate) store: Store,
    next_pid: Cell<i32>,
}

impl Node {
    pub(crate) fn new() -> Self {
        let dir = folder();
        let root = dir.path();
        for folder in ["proc/sys/kernel/random", "proc/self", "cgroup"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("proc/sys/kernel/random/boot_id"), format!("{:036}\n", 1)).unwrap();
        fs::write(root.join("proc/self/stat"), stat(1, 1, 'R')).unwrap();
        fs::write(root.join("cgroup/cgroup.controllers"), "").unwrap();
        let store = Self::open(root.to_owned());
        Self { store, dir, next_pid: Cell::new(100) }
    }

    fn open(root: PathBuf) -> Store {
        let host = Host { proc: root.join("proc"), cgroup: root.join("cgroup") };
        Store::open_on(&root.join("state"), host).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The allocator file.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("state/allocations.json")
    }

    /// Starts a process.
    pub(crate) fn spawn(&self) -> Process {
        self.next_pid.set(self.next_pid.get() + 1);
        self.spawn_as(self.next_pid.get(), 0)
    }

    /// Starts a process with a given pid, `later` seconds from now.
    pub(crate) fn spawn_as(&self, pid: i32, later: u64) -> Process {
        // The clocks of the store are real, so start times are.
        let uptime = fs::read_to_string("/proc/uptime").unwrap();
        let (seconds, hundredths) = uptime.split_once(' ').unwrap().0.split_once('.').unwrap();
        let hundredths =
            seconds.parse::<u64>().unwrap() * 100 + hundredths.parse::<u64>().unwrap() + later * 100;
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).unwrap().unwrap() as u64;
        let start = hundredths * ticks / 100 + 1;
        fs::create_dir_all(self.path(&format!("proc/{pid}"))).unwrap();
        fs::write(self.path(&format!("proc/{pid}/stat")), stat(pid, start, 'S')).unwrap();
        Process { pid, start }
    }

    /// Stops a process as SIGSTOP does, or lets it go on.
    pub(crate) fn stop(&self, process: Process, stopped: bool) {
        let state = if stopped { 'T' } else { 'S' };
        let path = self.path(&format!("proc/{}/stat", process.pid));
        fs::write(path, stat(process.pid, process.start, state)).unwrap();
    }

    /// Freezes the cgroup that a process is in, of v2, or lets it go on.
    pub(crate) fn freeze(&self, process: Process, frozen: bool) {
        fs::write(self.path(&format!("proc/{}/cgroup", process.pid)), "0::/cold\n").unwrap();
        fs::create_dir_all(self.path("cgroup/cold")).unwrap();
        let events = format!("populated 1\nfrozen {}\n", u8::from(frozen));
        fs::write(self.path("cgroup/cold/cgroup.events"), events).unwrap();
    }

    /// Has `process` (its folder in procfs) in a PID namespace.
    pub(crate) fn set_pid_namespace(&self, process: &str, namespace: u64) {
        let folder = self.path("proc").join(process).join("ns");
        fs::create_dir_all(&folder).unwrap();
        let _ = fs::remove_file(folder.join("pid"));
        std::os::unix::fs::symlink(format!("pid:[{namespace}]"), folder.join("pid")).unwrap();
    }

    /// Another process of fgpu on this node, in the PID namespace that `self` has now.
    pub(crate) fn again(&self) -> Store {
        Self::open(self.dir.path().to_owned())
    }

    pub(crate) fn kill(&self, process: Process) {
        let _ = fs::remove_dir_all(self.path(&format!("proc/{}", process.pid)));
    }

    /// Writes what the runtime would write, and returns where.
    pub(crate) fn pid_file(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.pid"))
    }

    pub(crate) fn populate(&self, cgroup: &str, populated: bool) {
        let folder = self.path("cgroup").join(cgroup);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.events"), format!("populated {}\n", u8::from(populated))).unwrap();
    }

    /// Everybody dies, and the boot id changes.
    pub(crate) fn reboot(&mut self, number: u32) {
        for entry in fs::read_dir(self.path("proc")).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_str().unwrap().parse::<i32>().is_ok() {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
        fs::remove_dir_all(self.path("cgroup")).unwrap();
        fs::create_dir(self.path("cgroup")).unwrap();
        fs::write(self.path("cgroup/cgroup.controllers"), "").unwrap();
        fs::write(self.path("proc/sys/kernel/random/boot_id"), format!("{number:036}\n")).unwrap();
        self.store = Self::open(self.dir.path().to_owned());
    }

    /// The container folders that exist.
    pub(crate) fn folders(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("state/containers")) else { return vec![] };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Makes a lease's container folder as the hook library does.
    pub(crate) fn make_folder(&self, lease: &Lease) {
        let folder = self.store.container_dir(&lease.grant.nonce);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("limits"), "x").unwrap();
    }
}

fn stat(pid: i32, start: u64, state: char) -> String {
    let zeros = "0 ".repeat(16);
    format!("{pid} (a (name)) {state} {zeros}1 0 {start} {zeros}{zeros}\n")
}

/// Held for reading by tests to which it matters that what they close is closed, and for writing while a
/// child that was forked has it open, too.
static DESCRIPTORS: RwLock<()> = RwLock::new(());

/// Keeps this process from forking as long as it lives.
pub(crate) fn unforked() -> RwLockReadGuard<'static, ()> {
    // A test that failed has left nothing in it.
    DESCRIPTORS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` in a forked child, which ends with its return value. It has no descriptor of this process but
/// the standard ones.
pub(crate) fn forked(work: impl FnOnce() -> i32) -> Pid {
    let _alone = DESCRIPTORS.write().unwrap_or_else(PoisonError::into_inner);
    let (mut closed, closes) = std::io::pipe().unwrap();
    // SAFETY: the child has only this thread; what `work` uses (memory, files) is made usable after a fork by
    // the C library, and it takes no lock of another thread: it prints nothing and ends without unwinding.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => {
            drop(closes);
            assert_eq!(closed.read(&mut [0]).unwrap(), 0, "it ends when the child has closed it");
            child
        }
        ForkResult::Child => {
            // SAFETY: whoever owns these descriptors is in the parent; the child drops nothing of it.
            unsafe { nix::libc::syscall(nix::libc::SYS_close_range, 3, nix::libc::c_uint::MAX, 0) };
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
            // SAFETY: ends the process at once, without the parent's exit handlers.
            unsafe { nix::libc::_exit(status) }
        }
    }
}

/// The exit status of a child.
pub(crate) fn status(child: Pid) -> i32 {
    match waitpid(child, None).unwrap() {
        WaitStatus::Exited(_, status) => status,
        other => panic!("the child ended with {other:?}"),
    }
}

/// A small generator; the numbers need only differ.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
