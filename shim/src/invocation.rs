//! The command line that containerd gives to a shim: `-namespace NS -address A -publish-binary B -id ID
//! [-bundle DIR] [-debug] start|delete`, or `-v`, or `-info` (containerd, pkg/shim/util.go `Command` and
//! core/runtime/v2/binary.go).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context;

/// What a run of this program is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// containerd's `start`.
    Start,
    /// containerd's `delete`.
    Delete,
    /// Our own: be the relay.
    Relay,
    /// Anything else is for the stock shim.
    Other,
}

/// A command line.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The arguments without `argv[0]`.
    pub(crate) args: Vec<OsString>,
}

impl Invocation {
    /// The action is the last argument: containerd puts it there, and Go's `flag` stops at it. (Looking for
    /// the first argument that is no flag would need the arity of flags that a later containerd may add.)
    pub(crate) fn action(&self) -> Action {
        match self.args.last().map(|last| last.as_bytes()) {
            Some(b"start") => Action::Start,
            Some(b"delete") => Action::Delete,
            Some(b"fgpu-relay") => Action::Relay,
            _ => Action::Other,
        }
    }

    /// The value of a flag, in each of the ways that Go's `flag` package takes: `-name value`, `--name
    /// value`, `-name=value`, `--name=value`.
    pub(crate) fn flag(&self, name: &str) -> Option<&OsStr> {
        let mut args = self.args.iter();
        while let Some(arg) = args.next() {
            let bytes = arg.as_bytes();
            let Some(text) = bytes.strip_prefix(b"-") else { continue };
            let text = text.strip_prefix(b"-").unwrap_or(text);
            match text.strip_prefix(name.as_bytes()) {
                Some([]) => return args.next().map(OsString::as_os_str),
                Some([b'=', value @ ..]) => return Some(OsStr::from_bytes(value)),
                _ => {}
            }
        }
        None
    }

    /// The value of a flag that must be there and be text.
    pub(crate) fn text(&self, name: &str) -> anyhow::Result<&str> {
        let value = self.flag(name).with_context(|| format!("-{name} is missing"))?;
        value.to_str().with_context(|| format!("-{name} is not UTF-8"))
    }

    /// The bundle: `-bundle`, else the working directory (containerd runs a shim in it).
    pub(crate) fn bundle(&self) -> anyhow::Result<PathBuf> {
        match self.flag("bundle") {
            Some(path) if !path.is_empty() => Ok(path.into()),
            _ => std::env::current_dir().context("cannot tell the working directory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation(args: &[&str]) -> Invocation {
        Invocation { args: args.iter().map(OsString::from).collect() }
    }

    #[test]
    fn containerd_starts_and_deletes() {
        let start = ["-namespace", "moby", "-address", "/a", "-publish-binary", "", "-id", "c1", "start"];
        let start = invocation(&start);
        assert_eq!(start.action(), Action::Start);
        assert_eq!(start.text("namespace").unwrap(), "moby");
        assert_eq!(start.text("id").unwrap(), "c1");
        assert_eq!(start.bundle().unwrap(), std::env::current_dir().unwrap());
        let delete = invocation(&["--namespace=k8s.io", "-id=c1", "-bundle", "/b", "-debug", "delete"]);
        assert_eq!(delete.action(), Action::Delete);
        assert_eq!(delete.text("namespace").unwrap(), "k8s.io");
        assert_eq!(delete.text("id").unwrap(), "c1");
        assert_eq!(delete.bundle().unwrap(), PathBuf::from("/b"));
    }

    #[test]
    fn the_rest_is_for_the_stock_shim() {
        for args in [&["-v"][..], &["-info"], &[], &["features"], &["-id", "start", "checkpoint"]] {
            assert_eq!(invocation(args).action(), Action::Other, "{args:?}");
        }
        assert!(invocation(&["-identity", "x", "start"]).text("id").is_err());
    }
}
