//! `fgpu doctor`: everything that must be so for a container to get its share, and what to do where it is
//! not.
//!
//! Each check is a function of the [`Node`] that is looked at, and adds what it finds. It only reads: files,
//! what the engines' programs say of their version, and what Docker says of its runtimes. With `--root` the
//! node is the one whose root file system is mounted there, as in a debugging pod; its `/proc`, `/dev` and
//! `/sys` are looked for there, too.

mod cdi;
mod conflicts;
mod containers;
mod driver;
mod engines;
mod health;
mod install;
mod kernel;
mod kubelet;
mod lock;
mod node;
mod report;
mod running;
mod slices;
mod slurm;
mod state;
mod units;

use std::path::PathBuf;

use fgpu_spec::Error;
use serde::Serialize;

use crate::output::{Output, json};
use crate::screen::{FAINT, Look, USED, WARNING, WRONG, paint};
use crate::table::plain;
use node::Node;

/// The exit code when only warnings were found.
pub(crate) const WARNED: u8 = 3;

/// What `fgpu doctor` is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long, conflicts_with = "report")]
    json: bool,

    /// Print everything that a bug report needs, without names of containers, owners and hosts
    #[arg(long)]
    report: bool,

    /// The node's root directory, where it is not this one's: `--root /host` in a debugging pod
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// Containers do not get their share, or it is not held.
    Error,
    /// Something works less well than it should, or stops working some day.
    Warning,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// Its name, which never changes.
    check: &'static str,
    severity: Severity,
    what: String,
    /// The commands that mend it, or what to do where no command can.
    mend: Vec<String>,
}

/// What all checks found. `fgpu doctor --json`.
#[derive(Debug, Default, Serialize)]
struct Diagnosis {
    findings: Vec<Finding>,
    /// What is as it should be.
    fine: Vec<String>,
}

impl Diagnosis {
    fn error(&mut self, check: &'static str, what: impl Into<String>, mend: &[&str]) {
        self.add(Severity::Error, check, what.into(), mend);
    }

    fn warn(&mut self, check: &'static str, what: impl Into<String>, mend: &[&str]) {
        self.add(Severity::Warning, check, what.into(), mend);
    }

    fn add(&mut self, severity: Severity, check: &'static str, what: String, mend: &[&str]) {
        let mend = mend.iter().map(|&line| line.to_owned()).collect();
        self.findings.push(Finding { check, severity, what, mend });
    }

    fn fine(&mut self, what: impl Into<String>) {
        self.fine.push(what.into());
    }

    fn has(&self, severity: Severity) -> bool {
        self.findings.iter().any(|finding| finding.severity == severity)
    }
}

/// The checks, in the order in which their findings are shown.
const CHECKS: [fn(&Node, &mut Diagnosis); 14] = [
    kernel::check,
    driver::check,
    health::check,
    install::check,
    state::check,
    units::check,
    lock::check,
    containers::check,
    slices::check,
    engines::check,
    cdi::check,
    kubelet::check,
    slurm::check,
    conflicts::check,
];

/// Looks at the node.
///
/// # Errors
/// `internal` if there is no such root.
pub(crate) fn run(config: Option<&std::path::Path>, arguments: &Arguments) -> Result<Output, Error> {
    let node = Node::new(arguments.root.as_deref(), config)?;
    let mut diagnosis = Diagnosis::default();
    CHECKS.iter().for_each(|check| check(&node, &mut diagnosis));
    let text = if arguments.report {
        report::text(&node, &diagnosis)
    } else if arguments.json {
        json(&diagnosis)?
    } else {
        text(&diagnosis, &Look::of_stdout())
    };
    let code = match (diagnosis.has(Severity::Error), diagnosis.has(Severity::Warning)) {
        (true, _) => 1,
        (false, true) => WARNED,
        (false, false) => 0,
    };
    Ok(Output { text, code: Some(code), ..Output::default() })
}

fn text(diagnosis: &Diagnosis, look: &Look) -> String {
    let mut text = String::new();
    let [good, bad, warned] = if look.unicode { ["✓", "✗", "!"] } else { ["ok", "!!", "! "] };
    for line in &diagnosis.fine {
        paint(&mut text, good, USED, look);
        text.push_str(&format!(" {}\n", plain(line)));
    }
    for finding in &diagnosis.findings {
        let (sign, style) = match finding.severity {
            Severity::Error => (bad, WRONG),
            Severity::Warning => (warned, WARNING),
        };
        paint(&mut text, sign, style, look);
        text.push_str(&format!(" {}", plain(&finding.what)));
        paint(&mut text, &format!("  [{}]", finding.check), FAINT, look);
        text.push('\n');
        for line in &finding.mend {
            text.push_str(&format!("    {}\n", plain(line)));
        }
    }
    let count = |severity| diagnosis.findings.iter().filter(|finding| finding.severity == severity).count();
    let sum = match (count(Severity::Error), count(Severity::Warning)) {
        (0, 0) => "Nothing is wrong.".to_owned(),
        (errors, warnings) => format!("Errors: {errors}, warnings: {warnings}. What mends each is below it."),
    };
    format!("{text}\n{sum}\n")
}
