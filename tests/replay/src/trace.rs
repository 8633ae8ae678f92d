//! The trace's two tables, as its README describes them: Alibaba cluster-trace-gpu-v2023,
//! `openb_node_list_gpu_node.csv` and `openb_pod_list_*.csv`.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Thousandths of a GPU in one.
pub const MILLI: u64 = 1000;

/// A table that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
pub struct Error {
    path: PathBuf,
    source: csv::Error,
}

/// A machine of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Machine {
    /// Its name; equally good machines are taken in the order of their names.
    #[serde(rename = "sn")]
    pub name: String,
    /// Thousandths of a processor.
    #[serde(rename = "cpu_milli")]
    pub cpu: u64,
    /// Main memory in MiB.
    #[serde(rename = "memory_mib")]
    pub memory: u64,
    /// GPUs.
    #[serde(rename = "gpu")]
    pub gpus: u32,
    /// Their model.
    pub model: String,
}

/// A task that arrives.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Task {
    /// Thousandths of a processor.
    #[serde(rename = "cpu_milli")]
    pub cpu: u64,
    /// Main memory in MiB.
    #[serde(rename = "memory_mib")]
    pub memory: u64,
    /// GPUs; 0 for a task without.
    #[serde(rename = "num_gpu")]
    pub gpus: u32,
    /// Thousandths of each GPU.
    #[serde(rename = "gpu_milli")]
    milli: u64,
    /// Models that do, with `|` between; any if it is empty.
    #[serde(rename = "gpu_spec", default)]
    pub models: String,
}

impl Task {
    /// Thousandths of each of its GPUs.
    pub fn milli(&self) -> u64 {
        if self.gpus == 0 { 0 } else { self.milli.min(MILLI) }
    }

    /// Thousandths of a GPU in all.
    pub fn total(&self) -> u64 {
        self.milli() * u64::from(self.gpus)
    }
}

/// Reads the machines, by name.
///
/// # Errors
/// The file cannot be read, or is no such table.
pub fn machines(path: &Path) -> Result<Vec<Machine>, Error> {
    let mut machines: Vec<Machine> = table(path)?;
    machines.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(machines)
}

/// Reads the tasks, in the order of the file.
///
/// # Errors
/// The file cannot be read, or is no such table.
pub fn tasks(path: &Path) -> Result<Vec<Task>, Error> {
    table(path)
}

fn table<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Error> {
    let failed = |source| Error { path: path.into(), source };
    let file = std::fs::File::open(path).map_err(|error| failed(error.into()))?;
    rows(file).map_err(failed)
}

fn rows<T: DeserializeOwned>(text: impl Read) -> Result<Vec<T>, csv::Error> {
    csv::Reader::from_reader(text).into_deserialize().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_by_the_names_of_their_columns() {
        let machines: Vec<Machine> =
            rows("sn,cpu_milli,memory_mib,gpu,model\nb,64000,262144,2,P100\n".as_bytes()).unwrap();
        let expected =
            Machine { name: "b".into(), cpu: 64_000, memory: 262_144, gpus: 2, model: "P100".into() };
        assert_eq!(machines, [expected]);
        let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n\
                    x,6000,12288,1,460,,LS\ny,88000,1,8,1000,V100M16|V100M32,BE\nz,1,1,0,0,,BE\n";
        let tasks: Vec<Task> = rows(text.as_bytes()).unwrap();
        assert_eq!(tasks.iter().map(Task::total).collect::<Vec<_>>(), [460, 8000, 0]);
        assert_eq!(tasks[1].models, "V100M16|V100M32");
        assert!(rows::<Task>("cpu_milli,memory_mib\n1,2\n".as_bytes()).is_err());
        assert!(tasks_error().contains("/no/such/table"));
    }

    fn tasks_error() -> String {
        super::tasks(Path::new("/no/such/table")).unwrap_err().to_string()
    }
}
