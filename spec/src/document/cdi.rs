//! CDI devices of ours. What an engine takes from their file is a hook, whose arguments have the device's
//! name.

use std::borrow::Cow;
use std::path::Path;

use serde::Deserialize;

use super::entry::entries;
use crate::Error;
use crate::json::Object;

/// The program that the file names.
const PROGRAM: &str = "fgpu-hook";
/// What stands before the device's name in the hook's arguments.
const OPTION: &str = "--device";

#[derive(Deserialize)]
struct Hook<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    args: Option<Vec<String>>,
}

/// See [`Document::cdi_devices`](super::Document::cdi_devices).
pub(super) fn devices(tree: &Object) -> Result<Vec<String>, Error> {
    let Some(hooks) = tree.object("hooks") else { return Ok(Vec::new()) };
    let hooks: Vec<(&str, Hook<'_>)> = entries(hooks.get("createRuntime"), "hooks.createRuntime")?;
    let ours = hooks
        .iter()
        .filter(|(_, hook)| Path::new(&*hook.path).file_name().is_some_and(|name| name == PROGRAM));
    let names = ours.filter_map(|(_, hook)| {
        let mut words = hook.args.iter().flatten();
        words.find(|word| *word == OPTION).and_then(|_| words.next()).cloned()
    });
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use crate::Document;

    fn devices(hooks: &str) -> Vec<String> {
        Document::parse(&format!(r#"{{"hooks":{{{hooks}}}}}"#)).unwrap().cdi_devices().unwrap()
    }

    #[test]
    fn the_names_are_those_of_our_own_hooks() {
        let hook = |path: &str, args: &str| format!(r#"{{"path":"{path}","args":[{args}]}}"#);
        let ours = hook("/usr/bin/fgpu-hook", r#""fgpu-hook","createRuntime","--device","0.25""#);
        let other = hook(
            "/opt/fgpu/bin/fgpu-hook",
            r#""fgpu-hook","createRuntime","--device","0.5","--timeout","9""#,
        );
        assert_eq!(devices(&format!(r#""createRuntime":[{ours},{other},{ours}]"#)), ["0.25", "0.5", "0.25"]);
        for hooks in [
            String::new(),
            r#""createRuntime":[]"#.into(),
            format!(r#""poststop":[{ours}]"#),
            format!(r#""createRuntime":[{}]"#, hook("/usr/bin/nvidia-cdi-hook", r#""x","--device","1""#)),
            format!(r#""createRuntime":[{}]"#, hook("/usr/bin/fgpu-hook", r#""fgpu-hook","createRuntime""#)),
            format!(r#""createRuntime":[{}]"#, hook("/usr/bin/fgpu-hook", r#""fgpu-hook","--device""#)),
            r#""createRuntime":[{"path":"/usr/bin/fgpu-hook"}]"#.into(),
        ] {
            assert_eq!(devices(&hooks), [""; 0], "{hooks}");
        }
        let wrong = Document::parse(r#"{"hooks":{"createRuntime":[7]}}"#).unwrap();
        assert!(wrong.cdi_devices().is_err());
    }
}
