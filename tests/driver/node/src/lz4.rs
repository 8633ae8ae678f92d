//! The block format of LZ4: sequences of a token, literals, and a copy of what came before.

use alloc::vec::Vec;

/// What a block is uncompressed, at most `size` bytes; `None` if it is no block.
pub fn expand(block: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(size);
    let mut input = block.iter().copied();
    while let Some(token) = input.next() {
        for _ in 0..length(token >> 4, &mut input)? {
            out.push(input.next()?);
        }
        // The last sequence has literals only.
        let Some(low) = input.next().filter(|_| out.len() < size) else { break };
        let back = usize::from(u16::from_le_bytes([low, input.next()?]));
        let start = out.len().checked_sub(back).filter(|_| back != 0)?;
        let count = length(token & 15, &mut input)? + 4;
        for at in start..start + count {
            out.push(*out.get(at)?);
        }
        if out.len() > size {
            return None;
        }
    }
    (out.len() == size).then_some(out)
}

/// A length that begins with four bits; 15 means that bytes follow, the last of which is not 255.
fn length(bits: u8, input: &mut impl Iterator<Item = u8>) -> Option<usize> {
    let mut length = usize::from(bits);
    if bits == 15 {
        loop {
            let more = input.next()?;
            length += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies_are_put_together() {
        assert_eq!(expand(b"\x1ea\x01\x00\x50aaaaa", 24), Some([b'a'; 24].to_vec()));
        assert_eq!(expand(b"\x35abc\x03\x00\x50vwxyz", 17), Some(b"abcabcabcabcvwxyz".to_vec()));
        // 15 literals and 5 more, with the bytes of a long length.
        let long = [&b"\xf0\x05"[..], &[b'x'; 20]].concat();
        assert_eq!(expand(&long, 20), Some([b'x'; 20].to_vec()));
    }

    #[test]
    fn a_value_beyond_its_block_is_none() {
        assert_eq!(expand(b"\x1ea\x02\x00\x50aaaaa", 24), None, "before the beginning");
        assert_eq!(expand(b"\x1ea\x01\x00\x50aaa", 24), None, "cut off");
        assert_eq!(expand(b"\x1ea\x01\x00\x50aaaaa", 12), None, "more than is said");
        assert_eq!(expand(b"\xff", 1000), None);
    }
}
