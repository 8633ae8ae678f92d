//! Completions of `fgpu` for shells.

use clap::Command;
use clap_complete::Shell;

/// The scripts, each with its path below /usr. zsh's is where zsh itself looks; Debian's looks elsewhere, and
/// its package puts it there.
pub fn scripts(command: &Command) -> Vec<(String, String)> {
    [
        (Shell::Bash, "share/bash-completion/completions/fgpu"),
        (Shell::Zsh, "share/zsh/site-functions/_fgpu"),
        (Shell::Fish, "share/fish/vendor_completions.d/fgpu.fish"),
    ]
    .map(|(shell, path)| (path.to_owned(), script(command, shell)))
    .to_vec()
}

fn script(command: &Command, shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut visible(command), "fgpu", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The command without the subcommands that are hidden: clap_complete offers them, too, and clap cannot take
/// one away.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().cloned();
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned();
    Command::new("fgpu").version(env!("CARGO_PKG_VERSION")).args(arguments).subcommands(inner)
}
