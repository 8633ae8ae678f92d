//! GPU UUIDs: NVML writes them as text, CUDA as 16 bytes.

/// The 16 bytes of a UUID in NVML's spelling, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, in the order in
/// which CUDA's `CUuuid` has them. `None` for anything else, a MIG device's `MIG-…` among it.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix("GPU-")?.as_bytes();
    if digits.len() != 36 {
        return None;
    }
    let mut uuid = [0; 16];
    let mut half = 0;
    for (place, &byte) in digits.iter().enumerate() {
        if matches!(place, 8 | 13 | 18 | 23) {
            if byte != b'-' {
                return None;
            }
            continue;
        }
        let value = (byte as char).to_digit(16)? as u8;
        uuid[half / 2] = uuid[half / 2] << 4 | value;
        half += 1;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::parse_uuid;

    #[test]
    fn nvml_spelling_is_the_bytes_in_reading_order() {
        assert_eq!(
            parse_uuid("GPU-00112233-4455-6677-8899-aAbBcCdDeEfF"),
            Some([
                0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee,
                0xff
            ])
        );
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "",
            "GPU-",
            "00112233-4455-6677-8899-aabbccddeeff",
            "MIG-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-00112233-4455-6677-8899-aabbccddeef",
            "GPU-00112233-4455-6677-8899-aabbccddeeff0",
            "GPU-0011223304455-6677-8899-aabbccddeeff",
            "GPU-00112233-4455-6677-8899-aabbccddeegg",
            "GPU-00112233-4455-6677-8899-aabbccddee\u{e9}",
        ] {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
    }
}
