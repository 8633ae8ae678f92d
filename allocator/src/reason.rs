//! Why a request gets the GPUs that it gets, in words.

use fgpu_spec::{Policy, Topology};

use crate::choose::{By, Chosen, closeness};

/// Half a sentence about the GPUs that were `picked` among `fitting` ones.
pub(crate) fn why(policy: Policy, fitting: usize, picked: &Chosen, topology: &Topology) -> String {
    let several = picked.places.len() > 1;
    if fitting == picked.places.len() {
        return if several { "no other GPUs fit" } else { "no other GPU fits" }.into();
    }
    let mut text = match (policy, several) {
        (Policy::Pack, false) => format!("of {fitting} GPUs that fit it is left with the least"),
        (Policy::Pack, true) => format!("of {fitting} GPUs that fit they are left with the least"),
        (Policy::Spread, false) => format!("it is the emptiest of {fitting} GPUs that fit"),
        (Policy::Spread, true) => format!("they are the emptiest of {fitting} GPUs that fit"),
        (Policy::Exclusive, false) => format!("it is the smallest of {fitting} empty GPUs"),
        (Policy::Exclusive, true) => format!("they are the smallest of {fitting} empty GPUs"),
    };
    match (picked.by, several) {
        (By::Cost, _) => {}
        (By::Index, _) => text += "; of equal ones the first",
        (By::Links, false) => text += "; of equal ones others have the least use for its links",
        (By::Links, true) => text += "; of equal ones they are the most closely linked",
    }
    let places = &picked.places;
    let pairs =
        places.iter().enumerate().flat_map(|(n, &one)| places[..n].iter().map(move |&two| (one, two)));
    let links: Option<Vec<_>> = pairs.map(|(one, two)| topology.link(one, two)).collect();
    if let Some(weakest) = links.unwrap_or_default().into_iter().min_by_key(|&link| closeness(Some(link))) {
        text += &format!(" (at least {weakest} between any two)");
    }
    text
}
