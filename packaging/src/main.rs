//! `fgpu-generate DIR` writes man pages and completions below DIR, which stands for /usr.
//! `fgpu-generate --docs DIR` writes the generated pages of the documentation into DIR.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fgpu_packaging::{annotations, completions, config, man};

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--docs", folder] => {
            write(&Path::new(folder).join(annotations::PAGE), &annotations::page())?;
            write(&Path::new(folder).join(config::PAGE), &config::page())
        }
        [folder] if !folder.starts_with('-') => {
            let folder = Path::new(folder);
            let pages = man::pages(&fgpu::command())?;
            for (path, text) in pages.into_iter().chain(completions::scripts(&fgpu::command())) {
                write(&folder.join(path), &text)?;
            }
            Ok(())
        }
        _ => bail!("usage: fgpu-generate DIR | fgpu-generate --docs DIR"),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
