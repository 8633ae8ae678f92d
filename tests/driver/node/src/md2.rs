//! HMAC-MD2 (RFC 2104 with RFC 1319), with which the runtime library tests the driver.

/// Bytes of a block, and of a digest.
pub const BLOCK: usize = 16;

/// The permutation of RFC 1319.
#[rustfmt::skip]
const PI: [u8; 256] = [
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19, 98, 167, 5, 243, 192, 199, 115, 140, 152, 147,
    43, 217, 188, 76, 130, 202, 30, 155, 87, 60, 253, 212, 224, 22, 103, 66, 111, 24, 138, 23, 229, 18, 190, 78, 196,
    214, 218, 158, 222, 73, 160, 251, 245, 142, 187, 47, 238, 122, 169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16,
    137, 11, 34, 95, 33, 128, 127, 93, 154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3, 255, 25, 48, 179, 72,
    165, 181, 209, 215, 94, 146, 42, 172, 86, 170, 198, 79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156,
    116, 4, 241, 69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101, 230, 45, 168, 2, 27, 96, 37, 173, 174, 176,
    185, 246, 28, 70, 97, 105, 52, 64, 126, 15, 85, 71, 163, 35, 221, 81, 175, 58, 195, 92, 249, 206, 186, 197, 234,
    38, 44, 83, 13, 110, 133, 40, 132, 9, 211, 223, 205, 244, 65, 129, 77, 82, 106, 220, 55, 200, 108, 193, 171, 250,
    36, 225, 123, 8, 12, 189, 177, 74, 120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57, 242,
    239, 183, 14, 102, 88, 208, 228, 166, 119, 114, 248, 235, 117, 75, 10, 49, 68, 80, 180, 143, 237, 31, 26, 219,
    153, 141, 51, 159, 17, 131, 20,
];

/// A digest in the making.
#[derive(Clone)]
pub struct Md2 {
    state: [u8; 48],
    checksum: [u8; BLOCK],
    block: [u8; BLOCK],
    filled: usize,
}

impl Md2 {
    /// Nothing digested yet.
    pub const fn new() -> Self {
        Self { state: [0; 48], checksum: [0; BLOCK], block: [0; BLOCK], filled: 0 }
    }

    /// Digests some more.
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.block[self.filled] = byte;
            self.filled += 1;
            if self.filled == BLOCK {
                self.mix(self.block);
                self.filled = 0;
            }
        }
    }

    fn mix(&mut self, block: [u8; BLOCK]) {
        let mut last = self.checksum[BLOCK - 1];
        for (sum, byte) in self.checksum.iter_mut().zip(block) {
            *sum ^= PI[usize::from(byte ^ last)];
            last = *sum;
        }
        for (i, byte) in block.into_iter().enumerate() {
            self.state[BLOCK + i] = byte;
            self.state[2 * BLOCK + i] = byte ^ self.state[i];
        }
        let mut t = 0;
        for round in 0..18 {
            for byte in &mut self.state {
                *byte ^= PI[usize::from(t)];
                t = *byte;
            }
            t = t.wrapping_add(round);
        }
    }

    /// The digest of all.
    pub fn finish(mut self) -> [u8; BLOCK] {
        let padding = BLOCK - self.filled;
        self.update(&[padding as u8; BLOCK][..padding]);
        self.mix(self.checksum);
        core::array::from_fn(|i| self.state[i])
    }
}

impl Default for Md2 {
    fn default() -> Self {
        Self::new()
    }
}

/// HMAC-MD2 of what `message` digests, under a key of one block.
pub fn hmac(key: [u8; BLOCK], message: impl FnOnce(&mut Md2)) -> [u8; BLOCK] {
    let mut inner = Md2::new();
    inner.update(&key.map(|byte| byte ^ 0x36));
    message(&mut inner);
    let mut outer = Md2::new();
    outer.update(&key.map(|byte| byte ^ 0x5c));
    outer.update(&inner.finish());
    outer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> u128 {
        let mut md2 = Md2::new();
        md2.update(text.as_bytes());
        u128::from_be_bytes(md2.finish())
    }

    /// The test suite of RFC 1319, A.5.
    #[test]
    fn it_digests_as_the_rfc_says() {
        assert_eq!(digest(""), 0x8350_e5a3_e24c_153d_f227_5c9f_8069_2773);
        assert_eq!(digest("abc"), 0xda85_3b0d_3f88_d99b_3028_3a69_e6de_d6bb);
        assert_eq!(digest("abcdefghijklmnopqrstuvwxyz"), 0x4e8d_dff3_6502_92ab_5a41_08c3_aa47_940b);
    }
}
