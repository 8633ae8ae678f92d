//! CDI devices of ours. What an engine takes from their file is a hook, whose arguments have the name of a
//! share or of a claim.

use std::borrow::Cow;
use std::path::Path;

use serde::Deserialize;

use super::entry::entries;
use crate::Error;
use crate::json::Object;

/// The program that the file names.
const PROGRAM: &str = "fgpu-hook";
/// What stands before a share's name in the hook's arguments.
pub(super) const DEVICE: &str = "--device";
/// What stands before a claim's.
pub(super) const CLAIM: &str = "--claim";

#[derive(Deserialize)]
struct Hook<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    args: Option<Vec<String>>,
}

/// The words that follow `option` in the arguments of our hooks.
///
/// # Errors
/// [`Code::Internal`](crate::Code::Internal) when the hooks have another type than the OCI runtime
/// specification gives them.
pub(super) fn names(tree: &Object, option: &str) -> Result<Vec<String>, Error> {
    let Some(hooks) = tree.object("hooks") else { return Ok(Vec::new()) };
    let hooks: Vec<(&str, Hook<'_>)> = entries(hooks.get("createRuntime"), "hooks.createRuntime")?;
    let ours = hooks
        .iter()
        .filter(|(_, hook)| Path::new(&*hook.path).file_name().is_some_and(|name| name == PROGRAM));
    let names = ours.filter_map(|(_, hook)| {
        let mut words = hook.args.iter().flatten();
        words.find(|word| *word == option).and_then(|_| words.next()).cloned()
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
    fn a_claim_is_no_share() {
        let hook = |words: &str| {
            format!(r#"{{"path":"/usr/bin/fgpu-hook","args":["fgpu-hook","createRuntime",{words}]}}"#)
        };
        let hooks = [hook(r#""--claim","1-2/gpu""#), hook(r#""--device","0.25""#)].join(",");
        let document = Document::parse(&format!(r#"{{"hooks":{{"createRuntime":[{hooks}]}}}}"#)).unwrap();
        assert_eq!(document.claims().unwrap(), ["1-2/gpu"]);
        assert_eq!(document.cdi_devices().unwrap(), ["0.25"]);
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
