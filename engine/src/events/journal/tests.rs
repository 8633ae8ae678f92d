use std::collections::BTreeSet;

use fgpu_allocator::Key;
use fgpu_spec::{Code, Error};

use super::*;

/// Reads an entry as the journal does.
fn fields(mut entry: &[u8]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut fields = Vec::new();
    while !entry.is_empty() {
        let end = entry.iter().position(|byte| *byte == b'\n').unwrap();
        let (line, rest) = (&entry[..end], &entry[end + 1..]);
        match line.iter().position(|byte| *byte == b'=') {
            Some(at) => {
                fields.push((text(&line[..at]), text(&line[at + 1..])));
                entry = rest;
            }
            None => {
                let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
                fields.push((text(line), text(&rest[8..8 + length])));
                assert_eq!(rest[8 + length], b'\n');
                entry = &rest[8 + length + 1..];
            }
        }
    }
    fields
}

#[test]
fn an_entry_arrives_whole_and_a_name_cannot_forge_a_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let journal = UnixDatagram::bind(&path).unwrap();
    let key = Key { namespace: "moby".into(), id: "web\nPRIORITY=0".into() };
    let error = Error::new(Code::NoCapacity, "full");
    send(&path, &Record::refused(Some(&key), &error)).unwrap();
    let mut buffer = [0; 4096];
    let length = journal.recv(&mut buffer).unwrap();
    let fields = fields(&buffer[..length]);
    let value = |key: &str| fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    assert_eq!(value("MESSAGE"), Some("\"moby/web\\nPRIORITY=0\" is refused: no-capacity: full"));
    assert_eq!(value("FGPU_CONTAINER"), Some("web\nPRIORITY=0"));
    assert_eq!(value("FGPU_EVENT"), Some("refused"));
    assert_eq!(value("FGPU_CODE"), Some("no-capacity"));
    assert_eq!(value("PRIORITY"), Some("4"));
    assert_eq!(value("FGPU_SCHEMA"), Some("1"));
    assert_eq!(value("SYSLOG_IDENTIFIER"), Some("fgpu"));
}

#[test]
fn a_journal_that_hangs_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _never_read = UnixDatagram::bind(&path).unwrap();
    let error = Error::new(Code::NoCapacity, "full");
    // Its queue is net.unix.max_dgram_qlen entries long, at most some thousand.
    let refused = (0..100_000).find_map(|_| send(&path, &Record::refused(None, &error)).err());
    assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
}

#[test]
fn each_kind_has_an_id_of_its_own() {
    let kinds = Kind::ALL;
    assert!(kinds.iter().all(|kind| id(*kind).len() == 32));
    assert_eq!(kinds.iter().map(|kind| id(*kind)).collect::<BTreeSet<_>>().len(), kinds.len());
}
