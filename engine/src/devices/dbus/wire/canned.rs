//! Replies for a peer that plays systemd in tests.

use super::{Buffer, ERROR, METHOD_RETURN, field};

/// What to answer.
#[derive(Debug, Clone)]
pub(in super::super::super) enum Canned {
    Nothing,
    /// `o`
    Path(&'static str),
    /// A variant of `s`.
    Text(&'static str),
    /// A variant of `a(ss)`.
    Pairs(Vec<(&'static str, &'static str)>),
    Error(&'static str),
}

/// The reply to a call, and a signal before it, which is no reply.
pub(in super::super::super) fn reply(serial: u32, canned: &Canned) -> Vec<u8> {
    let mut bytes = message(4, None, None, &Canned::Text("a signal"));
    let (kind, name) = match canned {
        Canned::Error(name) => (ERROR, Some(*name)),
        _ => (METHOD_RETURN, None),
    };
    bytes.extend(message(kind, Some(serial), name, canned));
    bytes
}

fn message(kind: u8, serial: Option<u32>, name: Option<&str>, canned: &Canned) -> Vec<u8> {
    let mut body = Buffer::default();
    let signature = match canned {
        Canned::Nothing => "",
        Canned::Path(path) => {
            body.string(path);
            "o"
        }
        Canned::Text(text) => {
            body.signature("s");
            body.string(text);
            "v"
        }
        Canned::Pairs(pairs) => {
            body.signature("a(ss)");
            body.array(8, |body| {
                for (first, second) in pairs {
                    body.pad(8);
                    body.string(first);
                    body.string(second);
                }
            });
            "v"
        }
        Canned::Error(_) => {
            body.string("as it was told");
            "s"
        }
    };
    let mut message = Buffer::default();
    message.0.extend([b'l', kind, 1, 1]);
    message.u32(body.0.len() as u32);
    message.u32(1);
    message.array(8, |fields| {
        if let Some(serial) = serial {
            fields.0.push(field::REPLY_SERIAL);
            fields.signature("u");
            fields.u32(serial);
        }
        if let Some(name) = name {
            fields.pad(8);
            fields.0.push(field::ERROR_NAME);
            fields.signature("s");
            fields.string(name);
        }
        fields.pad(8);
        fields.0.push(7); // the sender, which nobody asks for
        fields.signature("s");
        fields.string(":1.0");
        if !signature.is_empty() {
            fields.pad(8);
            fields.0.push(field::SIGNATURE);
            fields.signature("g");
            fields.signature(signature);
        }
    });
    message.pad(8);
    message.0.extend(&body.0);
    message.0
}
