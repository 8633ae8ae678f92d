//! `fgpu-sim set`: faults for the libraries to answer with.

use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use sim_node::fault::Fault;

use crate::status::Installed;

/// `<fault>=<number>`.
#[derive(Clone)]
pub(crate) struct Setting {
    fault: Fault,
    value: u64,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("not FAULT=NUMBER")?;
        let fault = Fault::named(name)
            .ok_or_else(|| format!("no such fault; there are {}", Fault::ALL.map(Fault::name).join(", ")))?;
        let value = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
        Ok(Self { fault, value })
    }
}

/// Sets faults of the node or of one of its GPUs.
pub(crate) fn set(root: &Path, gpu: Option<usize>, settings: &[Setting]) -> Result<()> {
    let Installed { node, mapped } = Installed::open(root, true)?;
    for Setting { fault, value } in settings {
        let faults = match gpu {
            None if fault.is_of_node() => &mapped.state.faults,
            None => bail!("{} is a fault of a GPU: say which with --gpu", fault.name()),
            Some(_) if fault.is_of_node() => bail!("{} is a fault of the node, not of a GPU", fault.name()),
            Some(index) if index < node.gpus().len() => &mapped.state.gpus[index].faults,
            Some(index) => bail!("no GPU {index}; the node has {}", node.gpus().len()),
        };
        faults[*fault as usize].store(*value, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_can_be_set_by_its_name() {
        for fault in Fault::ALL {
            let setting = format!("{}=7", fault.name()).parse::<Setting>().unwrap();
            assert_eq!((setting.fault, setting.value), (fault, 7));
        }
    }

    #[test]
    fn a_misspelt_fault_names_the_known_ones() {
        let error = "nvml-inti=1".parse::<Setting>().err().unwrap();
        assert!(error.contains("nvml-init"), "{error}");
    }
}
