//! `fgpu run`: a share for a plain process.

use std::collections::BTreeMap;
use std::ffi::OsString;

use fgpu_engine::Ended;
use fgpu_spec::Error;

use crate::node::Node;
use crate::share::{self, Share};

mod cgroup;
mod leftovers;
mod process;
mod view;

pub(crate) use cgroup::end_all;
pub(crate) use leftovers::clear as clear_leftovers;
pub(crate) use process::enter_view;

/// The arguments. Values are those of the annotations of the same name, and checked as such.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// That many distinct GPUs, the same share of each
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<String>,

    #[command(flatten)]
    share: Share,

    /// How long to wait for room: 30s, 2m
    #[arg(long, value_name = "DURATION")]
    wait: Option<String>,

    /// Any other annotation, with or without `fgpu/`: model=h100, isolation=none
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = share::annotation)]
    annotation: Vec<(String, String)>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Arguments {
    /// What is asked for, as a container would.
    fn annotations(&self) -> Result<BTreeMap<String, String>, Error> {
        let own = [("fgpu/count", &self.count), ("fgpu/wait", &self.wait)];
        let own = own.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
        share::once(own.chain(self.share.annotations()).chain(self.annotation.iter().cloned()))
    }
}

/// Runs the command to its end.
///
/// # Errors
/// Why it was not run: every code of [`fgpu_spec::Code`].
pub(crate) fn run(node: &Node, arguments: &Arguments) -> Result<Ended, Error> {
    let annotations = arguments.annotations()?;
    // A stale inventory is refreshed with the configuration that was named here.
    node.inventory()?;
    process::run(&node.config, &annotations, &arguments.command)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use fgpu_spec::Code;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Arguments {
        Line::try_parse_from([&["run"], words].concat()).map(|line| line.arguments).unwrap()
    }

    #[test]
    fn the_flags_are_annotations_and_the_rest_is_the_command() {
        let words = ["-n", "2", "-p", "1/3", "--wait=5s", "-a", "model=h100", "job", "-p", "8080", "--", "x"];
        let arguments = parse(&words);
        let asked = arguments.annotations().unwrap();
        let expected =
            [("fgpu/count", "2"), ("fgpu/fraction", "1/3"), ("fgpu/model", "h100"), ("fgpu/wait", "5s")];
        assert_eq!(asked, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert_eq!(arguments.command, ["job", "-p", "8080", "--", "x"]);
        assert_eq!(parse(&["-m", "4Gi", "--", "-x"]).command, ["-x"]);
    }

    #[test]
    fn a_key_that_is_given_twice_is_an_error() {
        let error = parse(&["-p", "0.5", "-a", "fraction=0.25", "job"]).annotations().unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
        assert!(error.message.contains("fgpu/fraction"), "{error}");
    }
}
