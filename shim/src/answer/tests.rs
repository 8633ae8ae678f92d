use super::*;

const OURS: &str = "/run/containerd/s/abc.fgpu";

fn rewrite(bytes: &[u8]) -> Vec<u8> {
    let answer = Answer::parse(bytes).unwrap();
    assert_eq!(answer.socket().unwrap(), Path::new("/run/containerd/s/abc"));
    answer.with_socket(Path::new(OURS)).unwrap()
}

#[test]
fn a_bare_address_is_replaced() {
    assert_eq!(rewrite(b"unix:///run/containerd/s/abc"), b"unix:///run/containerd/s/abc.fgpu");
    assert_eq!(rewrite(b"unix:///run/containerd/s/abc\n"), b"unix:///run/containerd/s/abc.fgpu");
}

#[test]
fn json_keeps_what_is_not_known() {
    let stock =
        br#"{"version":3,"address":"unix:///run/containerd/s/abc","protocol":"ttrpc","x":{"a": 1.50}}"#;
    let ours =
        r#"{"version":3,"address":"unix:///run/containerd/s/abc.fgpu","protocol":"ttrpc","x":{"a": 1.50}}"#;
    assert_eq!(String::from_utf8(rewrite(stock)).unwrap(), ours);
}

#[test]
fn protobuf_keeps_what_is_not_known() {
    let mut stock = BootstrapResult {
        version: 3,
        address: "unix:///run/containerd/s/abc".into(),
        protocol: "ttrpc".into(),
        ..Default::default()
    };
    stock.metadata.insert("k".into(), "v".into());
    let mut bytes = stock.write_to_bytes().unwrap();
    // Field 1000, length-delimited, "new": of a containerd to come.
    bytes.extend([0xc2, 0x3e, 3]);
    bytes.extend(b"new");
    let ours = BootstrapResult::parse_from_bytes(&rewrite(&bytes)).unwrap();
    assert_eq!(ours.address, format!("unix://{OURS}"));
    assert_eq!((ours.version, &*ours.protocol, &*ours.metadata["k"]), (3, "ttrpc", "v"));
    let unknown = ours.special_fields.unknown_fields();
    assert!(unknown.get(1000).is_some());
}

#[test]
fn an_answer_that_cannot_be_relayed_is_an_error() {
    assert!(Answer::parse(b"").is_err());
    assert!(Answer::parse(b"{\"version\":").is_err());
    assert!(Answer::parse(b"something went wrong").is_err());
    for stock in [
        &br#"{"version":3,"address":"unix:///a","protocol":"grpc"}"#[..],
        br#"{"version":3,"address":"vsock://3:1024","protocol":"ttrpc"}"#,
        br#"{"version":3,"protocol":"ttrpc"}"#,
        b"unix://relative",
    ] {
        assert!(Answer::parse(stock).unwrap().socket().is_err());
    }
}
