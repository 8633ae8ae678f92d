//! Which container is meant, by whatever an administrator knows of it.

use fgpu_allocator::{Key, Lease};
use fgpu_spec::{Code, Error, Nonce, escape_for_display};

use fgpu_allocator::names::Catalogue;

/// The help of every argument that is read here.
pub(crate) const HELP: &str = "A container's name or id as its engine gives it, the beginning of the id, NAMESPACE/ID, or the grant (32 hex digits) of \
     `fgpu status --json`";

/// A container that can be meant.
pub(crate) struct Candidate<'a, T> {
    /// The engine's names for it.
    pub(crate) key: &'a Key,
    /// Its grant, or what stands for it in the queue.
    pub(crate) nonce: Nonce,
    /// What people call it, if that is known.
    pub(crate) name: Option<String>,
    /// What the caller wants to have of it.
    pub(crate) value: T,
}

/// The lease that `what` names.
///
/// # Errors
/// As [`one`].
pub(crate) fn find<'a>(leases: &'a [Lease], what: &str) -> Result<&'a Lease, Error> {
    one(candidates(leases), what)
}

/// The containers that hold a share, with their names.
pub(crate) fn candidates(leases: &[Lease]) -> Vec<Candidate<'_, &Lease>> {
    let mut catalogue = Catalogue::default();
    leases
        .iter()
        .map(|lease| Candidate {
            key: &lease.key,
            nonce: lease.grant.nonce,
            name: catalogue.of(lease).name,
            value: lease,
        })
        .collect()
}

/// The one that `what` names: by its grant or its whole id, else by its name or the beginning of its id. The
/// latter two count alike: a user who may name containers must not be able to take the place of another
/// container's short id.
///
/// # Errors
/// `invalid-request` if none is meant, or several; these are listed.
pub(crate) fn one<T>(candidates: Vec<Candidate<'_, T>>, what: &str) -> Result<T, Error> {
    let nonce: Option<Nonce> = what.parse().ok();
    let exact =
        |one: &Candidate<'_, T>| nonce == Some(one.nonce) || one.key.id == what || full_name(one.key) == what;
    let vague = |one: &Candidate<'_, T>| {
        begins(one.key, what) || one.name.as_deref().is_some_and(|name| answers_to(name, what))
    };
    let meant: Vec<bool> = match candidates.iter().any(exact) {
        true => candidates.iter().map(exact).collect(),
        false => candidates.iter().map(vague).collect(),
    };
    let mut meant: Vec<_> =
        candidates.into_iter().zip(meant).filter_map(|(one, meant)| meant.then_some(one)).collect();
    if meant.len() == 1
        && let Some(one) = meant.pop()
    {
        return Ok(one.value);
    }
    let message = match meant.as_slice() {
        [] => nobody(what),
        several => {
            format!("{} may be {}; name one of them by its id", escape_for_display(what), list(several))
        }
    };
    Err(Error::new(Code::InvalidRequest, message))
}

/// `NAMESPACE/ID`, which no other container has.
pub(crate) fn full_name(key: &Key) -> String {
    format!("{}/{}", key.namespace, key.id)
}

/// Whether `what` is the beginning of the container's id, with or without its namespace before it.
pub(crate) fn begins(key: &Key, what: &str) -> bool {
    let rest = what.strip_prefix(key.namespace.as_str()).and_then(|rest| rest.strip_prefix('/'));
    [Some(what), rest].into_iter().flatten().any(|what| !what.is_empty() && key.id.starts_with(what))
}

/// Whether a container of this name can be called so: a pod's container by the pod's name or by its own, too,
/// but not by the namespace that it is in.
pub(crate) fn answers_to(name: &str, what: &str) -> bool {
    let (name, what): (Vec<_>, Vec<_>) = (name.split('/').collect(), what.split('/').collect());
    let within = |parts: &[&str]| parts.windows(what.len()).any(|part| part == what);
    name == what || within(&name[1..]) || (what.len() > 1 && name.starts_with(&what))
}

fn nobody(what: &str) -> String {
    let hint = match rustix::process::geteuid().is_root() {
        true => "",
        false => " (by their ids; most names are for root's eyes only)",
    };
    format!(
        "no container {} holds a share; `fgpu status` lists those that do{hint}",
        escape_for_display(what)
    )
}

/// How each can be named so that no other is meant.
fn list<T>(several: &[Candidate<'_, T>]) -> String {
    let label = |one: &Candidate<'_, T>| {
        let short = one.key.short();
        let unique = several.iter().filter(|other| other.key.short() == short).count() == 1;
        let id = if unique { short } else { full_name(one.key) };
        match &one.name {
            Some(name) => format!("{} ({})", escape_for_display(&id), escape_for_display(name)),
            None => escape_for_display(&id),
        }
    };
    several.iter().map(label).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests;
