//! Docker, through its own client.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::capture::{self, Folder};
use crate::cdi;
use crate::command::{Output, run, wait_until};
use crate::node::FrontEnd;
use crate::outside::FRAMEWORKS;

/// A `docker run` in the making.
#[derive(Debug, Clone)]
pub struct Run {
    options: Vec<String>,
    /// Of a container with a CDI device: what the device's name says in their place, and what is left.
    annotations: Option<Vec<(String, String)>>,
    image: String,
    command: Vec<String>,
}

/// Starts a [`Run`] of one of the lab's images.
#[track_caller]
pub fn container(image: &str) -> Run {
    load(image);
    container_of(image)
}

/// Starts a [`Run`] of an image that a test has made.
pub fn container_of(image: &str) -> Run {
    Run { options: Vec::new(), annotations: None, image: image.to_owned(), command: Vec::new() }
}

impl Run {
    /// Adds options of `docker run`.
    pub fn options<W: Into<String>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.options.extend(words.into_iter().map(Into::into));
        self
    }

    /// Under fgpu, through one of its front ends.
    pub fn under(mut self, front_end: FrontEnd) -> Self {
        if front_end == FrontEnd::Cdi {
            self.annotations = Some(Vec::new());
            return self;
        }
        self.options(["--runtime", front_end.docker_runtime()])
    }

    /// With an annotation. With a CDI device an amount is in the device's name.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        if let Some(annotations) = &mut self.annotations {
            annotations.push((key.to_owned(), value.to_owned()));
            return self;
        }
        self.options(["--annotation".to_owned(), format!("{key}={value}")])
    }

    /// The command in the container, with its arguments.
    pub fn command<W: Into<String>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// Runs it to its end and removes it. The output is what the command printed, or if it was not even
    /// started, what Docker said.
    #[track_caller]
    pub fn run(self) -> Output {
        let folder = Folder::new();
        let (name, command) = folder.wrap(&self.command);
        folder.collect(&name, self.with_output(&folder).command(command).run_plainly())
    }

    /// Runs it to its end and removes it. The output is what Docker handed through.
    #[track_caller]
    pub fn run_plainly(self) -> Output {
        self.invoke(&["run", "--rm"])
    }

    /// Runs it to its end and leaves what remains of it.
    #[track_caller]
    pub fn run_and_keep(self) -> Output {
        self.invoke(&["run"])
    }

    /// Starts it and leaves it running.
    #[track_caller]
    pub fn start(self) -> Container {
        self.try_start().unwrap_or_else(|output| panic!("{}", output.story()))
    }

    /// Tries to start it and to leave it running.
    #[track_caller]
    pub fn try_start(self) -> Result<Container, Output> {
        self.detached(&["run", "--detach"])
    }

    /// Makes it without starting it.
    #[track_caller]
    pub fn create(self) -> Container {
        self.detached(&["create"]).unwrap_or_else(|output| panic!("{}", output.story()))
    }

    #[track_caller]
    fn detached(self, how: &[&str]) -> Result<Container, Output> {
        let folder = Folder::new();
        let output = self.with_output(&folder).invoke(how);
        // When its start fails, Docker has made it all the same.
        let id = output.stdout.trim().to_owned();
        if output.status == 0 { Ok(Container { id, folder }) } else { Err(output) }
    }

    fn with_output(self, folder: &Folder) -> Self {
        self.options(["--volume".to_owned(), format!("{}:{}", folder.path(), capture::INSIDE)])
    }

    #[track_caller]
    fn invoke(mut self, how: &[&str]) -> Output {
        self.options.extend(cdi::options(self.annotations.take().unwrap_or_default()));
        let how = how.iter().map(|word| (*word).to_owned());
        run(["docker".to_owned()]
            .into_iter()
            .chain(how)
            .chain(self.options)
            .chain([self.image])
            .chain(self.command))
    }
}

/// A container.
#[derive(Debug, Clone)]
pub struct Container {
    /// Docker's id of it.
    pub id: String,
    folder: Folder,
}

impl Container {
    /// `docker exec`.
    #[track_caller]
    pub fn exec<W: Into<String>>(&self, words: impl IntoIterator<Item = W>) -> Output {
        let words: Vec<_> = words.into_iter().map(Into::into).collect();
        let (name, command) = self.folder.wrap(&words);
        let head = ["docker", "exec", &self.id].map(str::to_owned);
        self.folder.collect(&name, run(head.into_iter().chain(command)))
    }

    /// Another `docker` command on it.
    #[track_caller]
    pub fn docker(&self, words: &[&str]) -> Output {
        run(["docker"].iter().chain(words).copied().chain([self.id.as_str()]))
    }

    /// A field, in `docker inspect`'s template language.
    #[track_caller]
    pub fn inspect(&self, template: &str) -> String {
        run(["docker", "inspect", "--format", template, &self.id]).ok().to_owned()
    }

    /// The host's process id of its init; 0 if it does not run.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.inspect("{{.State.Pid}}").parse().expect("docker inspect prints a process id")
    }

    /// What it printed so far.
    #[track_caller]
    pub fn logs(&self) -> String {
        let output = self.docker(&["logs"]);
        output.ok();
        output.stdout + &output.stderr
    }

    /// Waits until it has printed `text`, and returns all that it printed.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) -> String {
        let mut logs = String::new();
        wait_until(&format!("{text:?} in a container's log"), || {
            logs = self.logs();
            let ended = !logs.contains(text) && self.inspect("{{.State.Running}}") == "false";
            assert!(!ended || self.logs().contains(text), "ended without printing {text:?}: {}", self.logs());
            logs.contains(text)
        });
        logs
    }

    /// Waits until Docker knows that it has ended.
    #[track_caller]
    pub fn wait_for_end(&self) {
        wait_until("the end of a container", || self.inspect("{{.State.Running}}") == "false");
    }

    /// `docker rm --force`.
    #[track_caller]
    pub fn remove(self) {
        self.docker(&["rm", "--force"]).ok();
    }
}

/// Removes every container.
#[track_caller]
pub fn remove_all() {
    wait_until("the end of all containers", || {
        let list = run(["docker", "ps", "--all", "--quiet"]);
        let ids: Vec<_> = list.ok().lines().collect();
        if ids.is_empty() {
            return true;
        }
        let output = run(["docker", "rm", "--force"].into_iter().chain(ids));
        // One that a killed daemon had left half removed may vanish meanwhile, and one that has ended remove
        // itself.
        let vanishes = ["No such container", "is already in progress"];
        let vanishes = vanishes.iter().any(|words| output.stderr.contains(words));
        assert!(output.status == 0 || vanishes, "{}", output.story());
        output.status == 0
    });
}

/// Brings an image of the lab into Docker, once.
#[track_caller]
pub fn load(image: &str) {
    static LOADED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !loaded.get_or_insert_default().insert(image.to_owned()) {
        return;
    }
    // `pause` is a busybox that does nothing: the sandbox of CRI pods.
    let (file, command) = if image == "pause" {
        ("busybox", r#"CMD ["sleep","2147483647"]"#)
    } else {
        (image, r#"CMD ["sh"]"#)
    };
    let path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/programs";
    let folder = if image == "python" { FRAMEWORKS } else { "/opt/images" };
    let file = format!("{folder}/{file}.tar");
    run(["docker", "import", "--change", path, "--change", command, &file, image]).ok();
}
