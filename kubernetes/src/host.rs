//! The way from a pod to its node.
//!
//! What the plugin does is the node's business: its state directory, the kubelet's sockets, CDI files, the
//! driver's libraries, mounts of grants. A pod that had a mount for each would see them almost as the node
//! does. So a pod with `hostPID` is the carrier only: it puts the programs of its image on the node, and the
//! plugin goes on from there in the node's own mount namespace, with the pod's network and account.
//!
//! ```text
//! image /usr/{bin,lib/fgpu} ─ read ─ setns(process 1) ─ DIR/VERSION-DIGEST/{bin,lib/fgpu} ─ exec
//! ```
//!
//! A folder is never written again: containers that run, and CDI files of claims that are prepared, name its
//! programs. One that no CDI file names is removed when the plugin starts. What else is in DIR stays, whatever
//! an administrator has chosen as DIR.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::config::Kubeconfig;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tracing::warn;
use twox_hash::XxHash3_64;

/// Where a pod has the token and the certificate of its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Tells the program that has come to the node where that folder is open.
pub const ACCOUNT_VARIABLE: &str = "FGPU_ACCOUNT";
/// How often what is not used any more is collected.
const COLLECT: Duration = Duration::from_secs(60);
/// Where the image has the programs.
const IMAGE: &str = "/usr";
/// What an installation consists of.
const FOLDERS: [&str; 2] = ["bin", "lib/fgpu"];
/// Hexadecimal digits at the end of a folder's name.
const DIGEST: usize = 16;
/// Behind the name of a folder that is not whole yet.
const UNFINISHED: &str = ".new";

/// A file of the installation.
#[derive(Debug)]
struct Program {
    /// Where, below the installation's folder.
    path: PathBuf,
    mode: u32,
    bytes: Vec<u8>,
}

/// Goes to the node and runs this program there, from a folder of its own below `to`. Does not return if it can.
///
/// # Errors
/// The pod has no `hostPID` or may not enter the node's namespaces, or the programs cannot be written.
pub fn go(to: &Path, cdi: &Path) -> Result<()> {
    // Kept over the exec: the token is renewed in there.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let account = open(ACCOUNT, flags, Mode::empty()).with_context(|| ACCOUNT.to_owned())?;
    let programs = read(Path::new(IMAGE)).with_context(|| IMAGE.to_owned())?;
    enter()?;
    let folder = to.join(name(&programs));
    install(&folder, &programs).with_context(|| format!("{}", folder.display()))?;
    if let Err(error) = sweep(to, &folder, cdi) {
        eprintln!("fgpu-dra: folders of other versions in {} stay: {error}", to.display());
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let error = Command::new(folder.join("bin/fgpu-dra"))
        .args(arguments)
        .env(ACCOUNT_VARIABLE, format!("/proc/self/fd/{}", account.as_raw_fd()))
        .exec();
    Err(error).with_context(|| format!("{}", folder.join("bin/fgpu-dra").display()))
}

/// The folder of the service account, in a descriptor that other programs do not get.
///
/// # Errors
/// It is not open.
pub fn account(named: &Path) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let own = open(named, flags, Mode::empty()).with_context(|| format!("{}", named.display()))?;
    let number: Option<i32> = named.file_name().and_then(|name| name.to_str()?.parse().ok());
    if let Some(number) = number {
        nix::unistd::close(number)?;
    }
    Ok(own)
}

/// The API server and the account by which a pod reaches it. The files are read anew when the token is renewed.
///
/// # Errors
/// The pod's environment does not name the API server.
pub fn kubeconfig(account: &OwnedFd) -> Result<Kubeconfig> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("no {name}: not in a pod"));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let folder = format!("/proc/self/fd/{}", account.as_raw_fd());
    let file = json!({
        "clusters": [{"name": "pod", "cluster": {
            "server": format!("https://{host}:{port}"), "certificate-authority": format!("{folder}/ca.crt")}}],
        "users": [{"name": "pod", "user": {"tokenFile": format!("{folder}/token")}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "current-context": "pod",
    });
    Ok(serde_json::from_value(file)?)
}

/// Does for ever what the timer of fgpu's package does on a node that has it: opens devices that an engine has
/// closed behind a container's back, and removes what killed programs left.
pub async fn collect() {
    let mut turn = tokio::time::interval(COLLECT);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turn.tick().await;
        match tokio::task::spawn_blocking(gc).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!("{error}"),
            Err(error) => warn!("fgpu gc: {error}"),
        }
    }
}

/// Runs the `fgpu gc` of this installation.
fn gc() -> Result<(), fgpu_spec::Error> {
    let program = fgpu_engine::sibling("fgpu")?;
    let output = Command::new(&program)
        .args(["gc", "--quiet"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .current_dir("/")
        .output()
        .map_err(|error| fgpu_spec::Error::io("run", &program, &error))?;
    if output.status.success() { Ok(()) } else { Err(fgpu_spec::Error::of_program("fgpu gc", &output)) }
}

/// Enters the mount and cgroup namespaces of process 1, which is the node's own.
fn enter() -> Result<()> {
    let link = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
    let first = link("1")
        .context("process 1 cannot be looked at: the pod needs hostPID: true and privileged: true")?;
    if link("self")? == first {
        bail!("process 1 is in this container: the pod needs hostPID: true");
    }
    let open = |kind: &str| File::open(format!("/proc/1/ns/{kind}"));
    let (mounts, cgroups) = (open("mnt")?, open("cgroup")?);
    setns(cgroups, CloneFlags::CLONE_NEWCGROUP)
        .context("the node's cgroups: the pod needs privileged: true")?;
    // This also makes the node's root the root and the working directory.
    setns(mounts, CloneFlags::CLONE_NEWNS).context("the node's mounts: the pod needs privileged: true")
}

/// The programs of an installation.
fn read(root: &Path) -> io::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(root.join(folder))? {
            let entry = entry?;
            let mode = entry.metadata()?.permissions().mode() & 0o777;
            let path = Path::new(folder).join(entry.file_name());
            programs.push(Program { path, mode, bytes: fs::read(entry.path())? });
        }
    }
    programs.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(programs)
}

/// The name of an installation's folder: other programs have another one.
fn name(programs: &[Program]) -> String {
    let digest = programs.iter().fold(0, |seed, program| {
        XxHash3_64::oneshot_with_seed(
            XxHash3_64::oneshot_with_seed(seed, &program.bytes),
            program.path.as_os_str().as_encoded_bytes(),
        )
    });
    format!("{}-{digest:0DIGEST$x}", env!("CARGO_PKG_VERSION"))
}

/// Puts programs into a folder, which is whole as soon as it is there.
fn install(folder: &Path, programs: &[Program]) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    let new = unfinished(folder);
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for inner in FOLDERS {
        fs::create_dir_all(new.join(inner))?;
    }
    for Program { path, mode, bytes } in programs {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(*mode).open(new.join(path))?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(*mode))?;
        file.sync_all()?;
    }
    for inner in FOLDERS {
        File::open(new.join(inner))?.sync_all()?;
    }
    fs::rename(&new, folder)?;
    folder.parent().map_or(Ok(()), |to| File::open(to)?.sync_all())
}

/// Where an installation is until it is whole.
fn unfinished(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// Whether a folder of this name is one of an installation: `to` may have others, which are not ours.
fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(UNFINISHED).unwrap_or(name);
    let digest = name.rsplit_once('-').map_or("", |(_, digest)| digest);
    name.starts_with(|first: char| first.is_ascii_digit())
        && digest.len() == DIGEST
        && digest.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Removes the folders of other versions whose programs no CDI file names.
fn sweep(to: &Path, current: &Path, cdi: &Path) -> io::Result<()> {
    let named = texts(cdi)?;
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        let path = entry.path();
        // `DirEntry::file_type` does not follow a link.
        let is_ours = entry.file_name().to_str().is_some_and(is_ours) && entry.file_type()?.is_dir();
        let is_used = path.to_str().is_none_or(|path| named.contains(&format!("{path}/")));
        if is_ours && path != current && !is_used {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// What all CDI files say.
///
/// # Errors
/// One cannot be read: who knows what it names.
fn texts(cdi: &Path) -> io::Result<String> {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let entries = match fs::read_dir(cdi) {
        Err(error) if is_gone(&error) => return Ok(String::new()),
        entries => entries?,
    };
    let mut all = String::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            continue;
        }
        match fs::read(entry.path()) {
            Err(error) if is_gone(&error) => {}
            text => all.push_str(&String::from_utf8_lossy(&text?)),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(root: &Path, words: &str) -> Vec<Program> {
        for folder in FOLDERS {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("bin/fgpu-hook"), words).unwrap();
        fs::set_permissions(root.join("bin/fgpu-hook"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join("lib/fgpu/libfgpu-cuda.so"), "library").unwrap();
        read(root).unwrap()
    }

    #[test]
    fn an_installation_is_whole_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (root, to, cdi) =
            (folder.path().join("usr"), folder.path().join("opt"), folder.path().join("cdi"));
        let (old, new) = (image(&root, "old"), image(&root, "new"));
        assert_ne!(name(&old), name(&new));
        assert_eq!(name(&new), name(&read(&root).unwrap()));
        let (first, second) = (to.join(name(&old)), to.join(name(&new)));
        install(&first, &old).unwrap();
        let hook = first.join("bin/fgpu-hook");
        assert_eq!(fs::read_to_string(&hook).unwrap(), "old");
        assert_eq!(fs::metadata(&hook).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(first.join("lib/fgpu/libfgpu-cuda.so").exists());
        install(&first, &new).unwrap();
        assert_eq!(fs::read_to_string(&hook).unwrap(), "old", "it is not written again");
        // Killed on the way.
        fs::create_dir_all(unfinished(&second).join("bin")).unwrap();
        fs::create_dir_all(unfinished(&to.join("0.0.9-0123456789abcdef"))).unwrap();
        install(&second, &new).unwrap();
        sweep(&to, &second, &cdi).unwrap();
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "no CDI file names the first one");
        assert!(second.exists());
    }

    #[test]
    fn programs_that_a_claim_names_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (to, cdi) = (folder.path().join("opt"), folder.path().join("cdi"));
        let folders = ["1.0-00000000000000aa", "1.0-00000000000000ab", "2.0-00000000000000bb"]
            .map(|name| to.join(name));
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        fs::create_dir_all(&cdi).unwrap();
        fs::write(cdi.join("claim.json"), format!(r#"{{"path": "{}/bin/fgpu-hook"}}"#, folders[1].display()))
            .unwrap();
        fs::write(cdi.join("other.yaml"), [0xff]).unwrap();
        let there = || folders.each_ref().map(|folder| folder.exists());
        // What it names is not known.
        std::os::unix::fs::symlink("loop", cdi.join("loop")).unwrap();
        sweep(&to, &folders[2], &cdi).unwrap_err();
        assert_eq!(there(), [true; 3]);
        fs::remove_file(cdi.join("loop")).unwrap();
        sweep(&to, &folders[2], &cdi).unwrap();
        assert_eq!(there(), [false, true, true]);
    }

    #[test]
    fn what_is_not_ours_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (to, cdi) = (folder.path(), folder.path().join("cdi"));
        let others =
            ["bin", "cuda-12.4", "x-0123456789abcdef", "1.0-0123456789abcdeg", "1.0-0123456789abcdef0"];
        others.iter().for_each(|name| fs::create_dir(to.join(name)).unwrap());
        let link = to.join("1.0-0123456789abcdef");
        std::os::unix::fs::symlink("bin", &link).unwrap();
        sweep(to, &to.join("1.0-00000000000000aa"), &cdi).unwrap();
        assert!(others.iter().all(|name| to.join(name).exists()) && link.exists());
    }
}
