//! The size of a share on the command line: the flags of `fgpu run` and `fgpu resize` that are annotations.

use std::collections::BTreeMap;

use fgpu_spec::{Code, Error};

/// How large a share is. Values are those of the annotations of the same name, and checked as such.
#[derive(Debug, clap::Args)]
pub(crate) struct Share {
    /// That share of each GPU's memory and SM time: 0.25, 25%, 1/3
    #[arg(short = 'p', long, value_name = "FRACTION")]
    fraction: Option<String>,

    /// Device memory per GPU: 4Gi, 512Mi
    #[arg(short, long, value_name = "MEMORY")]
    memory: Option<String>,

    /// Share of SM time: 30%, 1/3
    #[arg(long, value_name = "CORES")]
    cores: Option<String>,

    /// How the share of SM time is meant: cap (never more), share (idle time may be used), off
    #[arg(long, value_name = "COMPUTE")]
    compute: Option<String>,
}

impl Share {
    /// The flags that were given, as the annotations that they are.
    pub(crate) fn annotations(&self) -> impl Iterator<Item = (String, String)> + use<'_> {
        let named = [
            ("fgpu/fraction", &self.fraction),
            ("fgpu/memory", &self.memory),
            ("fgpu/cores", &self.cores),
            ("fgpu/compute", &self.compute),
        ];
        named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
    }
}

/// The annotations, each of which may be given once.
///
/// # Errors
/// `invalid-request` names the key that is given twice.
pub(crate) fn once(
    given: impl IntoIterator<Item = (String, String)>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut annotations = BTreeMap::new();
    for (key, value) in given {
        if let Some(before) = annotations.insert(key.clone(), value) {
            let (key, before) = (fgpu_spec::escape_for_display(&key), fgpu_spec::escape_for_display(&before));
            let message = format!("{key} is given twice, once as {before}; name each key once");
            return Err(Error::new(Code::InvalidRequest, message));
        }
    }
    Ok(annotations)
}

/// Reads `KEY=VALUE`; a key without a slash is one of `fgpu/`.
pub(crate) fn annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) | None => Err("an annotation is KEY=VALUE, for example fraction=0.25".into()),
        Some((key, value)) if key.contains('/') => Ok((key.into(), value.into())),
        Some((key, value)) => Ok((format!("fgpu/{key}"), value.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_may_leave_out_the_prefix() {
        assert_eq!(annotation("fraction=0.25"), Ok(("fgpu/fraction".into(), "0.25".into())));
        assert_eq!(annotation("fgpu/device=a=b"), Ok(("fgpu/device".into(), "a=b".into())));
        assert_eq!(annotation("web.fgpu/count=0"), Ok(("web.fgpu/count".into(), "0".into())));
        assert!(annotation("fraction").is_err());
        assert!(annotation("=1").is_err());
    }

    #[test]
    fn a_key_that_is_given_twice_is_an_error() {
        let given = |values: &[&str]| {
            once(values.iter().map(|value| ("fgpu/fraction".to_owned(), (*value).to_owned())))
        };
        assert_eq!(given(&["0.5"]).unwrap()["fgpu/fraction"], "0.5");
        let error = given(&["0.5\u{1b}[2J", "0.25"]).unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
        assert_eq!(
            error.message,
            "fgpu/fraction is given twice, once as \"0.5\\u{1b}[2J\"; name each key once"
        );
    }
}
