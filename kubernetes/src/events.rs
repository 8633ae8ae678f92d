//! Events of claims: `kubectl describe resourceclaim` shows why one could not be prepared.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::warn;

use crate::names::DRIVER;

/// Longest note of an event in bytes (events.k8s.io/v1).
const LONGEST: usize = 1024;

/// Writes events.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// By the plugin of the node with this name.
    pub fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: DRIVER.into(), instance: Some(node.to_owned()) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Says why a claim could not be prepared. Not waited for: the kubelet has its answer.
    pub fn failed_to_prepare(&self, claim: ObjectReference, why: &str) {
        let recorder = self.recorder.clone();
        let event = Event {
            type_: EventType::Warning,
            reason: "FailedPrepare".into(),
            note: Some(cut(why).to_owned()),
            action: "Prepare".into(),
            secondary: None,
        };
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &claim).await {
                warn!("an event of claim {:?} is not written: {error}", claim.name.unwrap_or_default());
            }
        });
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, cut};

    #[test]
    fn a_note_has_a_bounded_length() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(LONGEST);
        assert!(cut(&long).len() <= LONGEST && long.starts_with(cut(&long)));
    }
}
