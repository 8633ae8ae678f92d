//! Man pages: section 1 from the command line of `fgpu`, section 5 from the configuration file, section 7
//! from the list of annotations, section 8 written by hand in packaging/man.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::{annotations, config};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The pages that are written by hand. `@VERSION@` in them is the version.
const BY_HAND: [(&str, &str); 3] = [
    ("man8/containerd-shim-fgpu-v2.8", include_str!("../man/containerd-shim-fgpu-v2.8")),
    ("man8/fgpu-hook.8", include_str!("../man/fgpu-hook.8")),
    ("man8/fgpu-runtime.8", include_str!("../man/fgpu-runtime.8")),
];

/// Every page, with its path below /usr.
///
/// # Errors
/// When a page cannot be rendered.
pub fn pages(command: &Command) -> io::Result<Vec<(String, String)>> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    commands(&command, "fgpu", &mut pages)?;
    pages.push(("man5/fgpu-config.5".to_owned(), config_page()));
    pages.push(("man7/fgpu-annotations.7".to_owned(), annotations_page()));
    pages.extend(BY_HAND.map(|(path, text)| (path.to_owned(), text.replace("@VERSION@", VERSION))));
    Ok(pages.into_iter().map(|(path, text)| (format!("share/man/{path}"), text)).collect())
}

/// The pages of a command and of its subcommands, those that are hidden left out.
fn commands(command: &Command, name: &str, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    let man = Man::new(command.clone()).manual("fgpu").source(format!("fgpu {VERSION}"));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut page = String::from_utf8_lossy(&text).into_owned();
    page += &rest(command).to_roff();
    pages.push((format!("man1/{name}.1"), page));
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        commands(inner, &format!("{name}-{}", inner.get_name()), pages)?;
    }
    Ok(())
}

/// What follows the options: the examples and exit codes of the help, in its own lines, and where to read on.
fn rest(command: &Command) -> Roff {
    let mut rest = Roff::new();
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        rest.control("SH", ["NOTES"]);
        rest.control("nf", []);
        rest.text([roman(notes.to_string())]);
        rest.control("fi", []);
    }
    let others = [("fgpu", "1"), ("fgpu-config", "5"), ("fgpu-annotations", "7")];
    see_also(&mut rest, if command.get_name() == "fgpu" { &others[1..] } else { &others });
    rest
}

/// A page with its title, its name line and a description; `text` may have Markdown's marks of code, which
/// are dropped.
fn begin(title: &str, section: &str, name: &str, description: &[&str]) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [title, section, "", &format!("fgpu {VERSION}"), "fgpu"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{title} - {name}"))]);
    page.control("SH", ["DESCRIPTION"]);
    for paragraph in description {
        page.control("PP", []);
        page.text([plain(paragraph)]);
    }
    page
}

fn plain(text: &str) -> Inline {
    roman(text.replace('`', ""))
}

fn see_also(page: &mut Roff, others: &[(&str, &str)]) {
    page.control("SH", ["SEE ALSO"]);
    let last = others.len().saturating_sub(1);
    let inline = others.iter().enumerate().flat_map(|(index, (name, section))| {
        [bold(*name), roman(format!("({section}){}", if index == last { "" } else { ", " }))]
    });
    page.text(inline.collect::<Vec<_>>());
}

/// fgpu-config(5).
fn config_page() -> String {
    let name = "what a node allows and where its driver is: /etc/fgpu/config.toml";
    let mut page = begin("fgpu-config", "5", name, &config::INTRODUCTION);
    page.control("SH", ["KEYS"]);
    let mut table = String::new();
    for setting in config::settings() {
        if setting.table != table {
            page.control("SS", [setting.table.as_str()]);
            table = setting.table;
        }
        page.control("TP", []);
        page.text([bold(setting.key), roman(format!(" = {}", setting.value))]);
        page.text([plain(&setting.meaning)]);
    }
    see_also(&mut page, &[("fgpu", "1"), ("fgpu-annotations", "7")]);
    page.to_roff()
}

/// fgpu-annotations(7).
fn annotations_page() -> String {
    let name = "what a container asks for with fgpu/ annotations";
    let mut page = begin("fgpu-annotations", "7", name, &annotations::INTRODUCTION);
    page.control("SH", ["ANNOTATIONS"]);
    for reference in fgpu_spec::key_reference() {
        page.control("TP", []);
        page.text([bold(reference.key)]);
        page.text([plain(reference.meaning)]);
        for (word, text) in [("Value", reference.grammar), ("Default", reference.default)] {
            page.control("br", []);
            page.text([roman(format!("{word}: ")), plain(text), roman(".")]);
        }
        page.control("br", []);
        page.text([roman(format!("Examples: {}", reference.examples.join("  ")))]);
    }
    page.control("SH", ["OTHER SYSTEMS' ANNOTATIONS"]);
    page.text([plain(annotations::ALIASES)]);
    for vocabulary in fgpu_spec::Vocabulary::ALL {
        page.control("TP", []);
        page.text([bold(vocabulary.to_string())]);
        page.text([roman([vocabulary.keys(), vocabulary.variables()].concat().join(", "))]);
    }
    see_also(&mut page, &[("fgpu", "1"), ("fgpu-explain", "1"), ("fgpu-config", "5")]);
    page.to_roff()
}
