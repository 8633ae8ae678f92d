use super::*;

/// What a splitter makes of `bytes` handed over in pieces of `step`: (header, body) of every whole frame.
fn split(bytes: &[u8], step: usize) -> Vec<(MessageHeader, Vec<u8>)> {
    let mut splitter = Splitter::default();
    let mut frames: Vec<(MessageHeader, Vec<u8>)> = Vec::new();
    for mut input in bytes.chunks(step) {
        while let Some(piece) = splitter.next(&mut input) {
            match piece {
                Piece::Head(raw, header) => {
                    assert_eq!(raw[..], Vec::from(header)[..]);
                    frames.push((header, Vec::new()));
                }
                Piece::Body(body) => frames.last_mut().unwrap().1.extend_from_slice(body),
            }
        }
        assert!(input.is_empty(), "a splitter takes everything");
    }
    frames
}

#[test]
fn frames_are_found_however_the_bytes_arrive() {
    let headers = [MessageHeader::new_request(1, 0), MessageHeader::new_data(3, 0)];
    let bodies: [&[u8]; 4] = [b"hello", b"", &[7; 300], b"x"];
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for (index, body) in bodies.iter().enumerate() {
        let header = MessageHeader { length: body.len() as u32, ..headers[index % 2] };
        bytes.extend(frame(header, body));
        expected.push((header, body.to_vec()));
    }
    for step in [1, 2, 3, 7, 9, 10, 11, 64, bytes.len()] {
        assert_eq!(split(&bytes, step), expected, "in steps of {step}");
    }
}

#[test]
fn garbage_is_a_frame_like_any_other() {
    let bytes = [0xff; 10];
    let mut splitter = Splitter::default();
    let mut input = &bytes[..];
    let Some(Piece::Head(raw, header)) = splitter.next(&mut input) else { panic!("no header") };
    assert_eq!((raw, header.length, header.stream_id), (bytes, u32::MAX, u32::MAX));
    assert!(!splitter.at_boundary());
    assert_eq!(splitter.next(&mut &[1, 2][..]), Some(Piece::Body(&[1, 2])));
}

#[test]
fn a_boundary_is_where_no_body_is_open() {
    let bytes = frame(MessageHeader::new_response(5, 0), b"ab");
    let mut splitter = Splitter::default();
    assert!(splitter.at_boundary());
    let mut input = &bytes[..11];
    while splitter.next(&mut input).is_some() {}
    assert!(!splitter.at_boundary());
    let mut input = &bytes[11..];
    while splitter.next(&mut input).is_some() {}
    assert!(splitter.at_boundary());
}

#[test]
fn an_error_frame_is_a_ttrpc_response() {
    let bytes = error_frame(9, Code::RESOURCE_EXHAUSTED, "fgpu: no-capacity: none left");
    let frames = split(&bytes, bytes.len());
    assert_eq!(frames[0].0.stream_id, 9);
    let response = Response::parse_from_bytes(&frames[0].1).unwrap();
    assert_eq!(response.status().message, "fgpu: no-capacity: none left");
    assert_eq!(response.status().code(), Code::RESOURCE_EXHAUSTED);
}
