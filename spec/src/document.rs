//! A container's `config.json`: what is read from it, and the edits of a [`Plan`].
//!
//! - Everything that is not edited keeps its bytes.
//! - An edit says what shall be there, not what to add: applied twice it gives what it gives once.
//! - An empty plan changes nothing at all.
//!
//! | part | edit |
//! |---|---|
//! | `annotations` | set |
//! | `linux.devices` | added; one of the same path is replaced; a GPU or MIG capability that is not in the plan is removed |
//! | (the same, in a user namespace) | a node that the host has at another path is a bind mount instead |
//! | `linux.resources.devices` | one rule per node, `allow c MAJOR:MINOR rw`; a rule that allows another GPU is removed, or replaced by rules for all else that it allows |
//! | `mounts` | appended, so that they lie over the container's own; those of a former edit are replaced |
//! | `hooks.createRuntime`, `hooks.poststop` | appended; one that runs the same program is replaced |
//!
//! Why GPUs are *removed*: `--privileged` lists every device node of the host, and `--device` may name one
//! by hand. The grant decides which GPUs a container has. A privileged container's cgroup still allows
//! every device; no rule is added against that, because runc under systemd turns a list of exceptions into
//! a temporary deny-all that the next daemon-reload makes permanent.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::json::{Branch, Node, Object};
use crate::{Error, GRANT_ANNOTATION, Nonce, Plan};

mod cdi;
mod devices;
mod edit;
mod entry;
mod foreign;

use entry::unreadable;
pub use foreign::{ForeignDriver, is_driver_file};

/// What is taken apart; all else stays text.
const EDITED: &[Branch] =
    &[Branch("annotations", &[]), Branch("linux", &[Branch("resources", &[])]), Branch("hooks", &[])];

/// A container's `config.json`, to be read and edited.
///
/// `Display` and `to_string()` give the JSON: the very text that was parsed as long as no edit changed
/// anything.
#[derive(Debug, Clone)]
pub struct Document {
    text: String,
    tree: Object,
    view: View,
}

/// What is read from a document, so that readers neither fail nor parse.
#[derive(Debug, Clone, Default)]
struct View {
    annotations: BTreeMap<String, String>,
    env: Vec<String>,
    cwd: String,
    root: Option<String>,
    /// Whether `CAP_SYS_ADMIN` is in the bounding set.
    is_administrator: bool,
}

impl Document {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`Code::Internal`] when it is no JSON object, has a key twice, or when a part that is read here has
    /// another type than the OCI runtime specification gives it. The message holds the position.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let tree = Object::parse(text, EDITED).map_err(|source| unreadable("it", &source))?;
        let view = View::of(&tree)?;
        Ok(Self { text: text.to_owned(), tree, view })
    }

    /// `annotations`; empty when there are none.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.view.annotations.clone()
    }

    /// The names of the CDI devices of ours that the engine put into the spec, as they come: an engine may
    /// list one several times.
    ///
    /// # Errors
    /// [`Code::Internal`] when the hooks have another type than the OCI runtime specification gives them.
    pub fn cdi_devices(&self) -> Result<Vec<String>, Error> {
        cdi::names(&self.tree, cdi::DEVICE)
    }

    /// The claims that the container uses, each `UID/REQUEST`, as its engine put their CDI devices into the
    /// spec. An engine may list one several times.
    ///
    /// # Errors
    /// As [`Document::cdi_devices`].
    pub fn claims(&self) -> Result<Vec<String>, Error> {
        cdi::names(&self.tree, cdi::CLAIM)
    }

    /// `process.env`, each `NAME=VALUE`, in its order.
    pub fn env(&self) -> Vec<String> {
        self.view.env.clone()
    }

    /// `process.cwd`: where the container's first process starts.
    pub fn cwd(&self) -> String {
        self.view.cwd.clone()
    }

    /// `linux.cgroupsPath` (config-linux.md): a path, or systemd's `SLICE:PREFIX:NAME`.
    pub fn cgroups_path(&self) -> Option<String> {
        let node = self.tree.object("linux")?.get("cgroupsPath")?;
        serde_json::from_str(&node.json()).ok()
    }

    /// `root.path`: absolute, or relative to the bundle.
    pub fn root_path(&self) -> Option<String> {
        self.view.root.clone()
    }

    /// Whether the container gets or joins a user namespace. One of which that cannot be told counts as
    /// having it.
    pub fn has_user_namespace(&self) -> bool {
        edit::has_user_namespace(&self.tree).unwrap_or(true)
    }

    /// Whether a process of the container may change mounts that the host made: it can have `CAP_SYS_ADMIN`
    /// and is in no user namespace, where the flags of such mounts are locked (mount_namespaces(7)).
    pub fn may_remount(&self) -> bool {
        self.view.is_administrator && !self.has_user_namespace()
    }

    /// The grant that a former edit wrote into the annotations. A user can write one too: it names a lease
    /// only together with the container's own id.
    pub fn grant(&self) -> Option<Nonce> {
        self.view.annotations.get(GRANT_ANNOTATION)?.parse().ok()
    }

    /// The first rule of the device cgroup by which the container could open a GPU or a capability that is
    /// not in the plan. A privileged container may open every device, and `None` is returned for it.
    ///
    /// # Errors
    /// [`Code::Internal`] when the rules have another type than the OCI runtime specification gives them.
    pub fn ungranted_rule(&self, plan: &Plan) -> Result<Option<String>, Error> {
        devices::ungranted_rule(&self.tree, plan)
    }

    /// Applies the plan; see the table at the top of this module's source for what it edits.
    ///
    /// # Errors
    /// [`Code::Internal`] when the plan cannot be written down (a path that is not absolute or not UTF-8, a
    /// hook without environment) or a list that is to be edited has entries of a wrong type. The document
    /// is then as it was.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), Error> {
        if *plan == Plan::default() {
            return Ok(());
        }
        let mut tree = self.tree.clone();
        if edit::apply(&mut tree, plan)? {
            self.view.annotations = annotations(&tree)?;
            self.text.clear();
            tree.print(&mut self.text);
            self.tree = tree;
        }
        Ok(())
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl View {
    fn of(tree: &Object) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Process {
            env: Option<Vec<String>>,
            cwd: Option<String>,
            capabilities: Option<Capabilities>,
        }
        #[derive(Deserialize)]
        struct Capabilities {
            bounding: Option<Vec<String>>,
        }
        #[derive(Deserialize)]
        struct Root {
            path: Option<String>,
        }
        let process: Option<Process> = read(tree.get("process"), "process")?;
        let root: Option<Root> = read(tree.get("root"), "root")?;
        let (env, cwd, capabilities) =
            process.map(|process| (process.env, process.cwd, process.capabilities)).unwrap_or_default();
        let bounding = capabilities.and_then(|capabilities| capabilities.bounding).unwrap_or_default();
        Ok(Self {
            annotations: annotations(tree)?,
            env: env.unwrap_or_default(),
            cwd: cwd.unwrap_or_default(),
            is_administrator: bounding.iter().any(|name| name == "CAP_SYS_ADMIN"),
            root: root.and_then(|root| root.path),
        })
    }
}

fn annotations(tree: &Object) -> Result<BTreeMap<String, String>, Error> {
    let Some(annotations) = tree.object("annotations") else {
        return Ok(BTreeMap::new());
    };
    annotations
        .iter()
        .map(|(key, value)| Ok((key.to_owned(), serde_json::from_str(&value.json())?)))
        .collect::<Result<_, _>>()
        .map_err(|source| unreadable("annotations", &source))
}

fn read<T: for<'de> Deserialize<'de>>(node: Option<&Node>, name: &str) -> Result<Option<T>, Error> {
    node.map(|node| serde_json::from_str(&node.json()))
        .transpose()
        .map_err(|source| unreadable(name, &source))
}

#[cfg(test)]
mod tests;
