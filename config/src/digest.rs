//! SHA-256 and SHA-224 (FIPS 180-4), and the letters of RFC 4648: sources of a Content-Security-Policy, and the names that
//! Felix gives its chains and sets. They guard no secret; the tree has no hash crate for them alone.

/// The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
#[rustfmt::skip]
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// The first state of SHA-256 (FIPS 180-4, 5.3.3).
const START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The first state of SHA-224 (FIPS 180-4, 5.3.2).
const START_224: [u32; 8] =
    [0xc105_9ed8, 0x367c_d507, 0x3070_dd17, 0xf70e_5939, 0xffc0_0b31, 0x6858_1511, 0x64f9_8fa7, 0xbefa_4fa4];

/// SHA-256.
#[must_use]
pub fn sha256(data: &[u8]) -> [u8; 32] {
    digest(START, data)
}

/// SHA-224: the same from another first state, cut to 28 octets.
#[must_use]
pub fn sha224(data: &[u8]) -> [u8; 28] {
    let mut out = [0; 28];
    out.copy_from_slice(&digest(START_224, data)[..28]);
    out
}

fn digest(start: [u32; 8], data: &[u8]) -> [u8; 32] {
    let mut padded = data.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() < data.len() + 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let at = padded.len() - 8;
    let bits = u64::try_from(data.len()).unwrap_or(u64::MAX).wrapping_mul(8);
    padded[at..].copy_from_slice(&bits.to_be_bytes());
    let mut state = start;
    for block in padded.chunks_exact(64) {
        turn(&mut state, block);
    }
    let mut digest = [0; 32];
    for (out, word) in digest.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn turn(state: &mut [u32; 8], block: &[u8]) {
    let mut w = [0u32; 64];
    for (word, octets) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = octets.iter().fold(0, |word, octet| (word << 8) | u32::from(*octet));
    }
    for t in 16..64 {
        let (x, y) = (w[t - 15], w[t - 2]);
        let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
        let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
        w[t] = w[t - 16].wrapping_add(s0).wrapping_add(w[t - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (k, w) in K.iter().zip(w) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let t1 = h.wrapping_add(s1).wrapping_add((e & f) ^ (!e & g)).wrapping_add(*k).wrapping_add(w);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t2 = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(add);
    }
}

/// Base 64 (RFC 4648, 4).
#[must_use]
pub fn base64(data: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in data.chunks(3) {
        let octet = |i: usize| usize::from(three.get(i).copied().unwrap_or_default());
        let bits = (octet(0) << 16) | (octet(1) << 8) | octet(2);
        for (digit, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let letter = char::from(DIGITS[(bits >> shift) & 63]);
            out.push(if digit <= three.len() { letter } else { '=' });
        }
    }
    out
}

/// Base 64 for URLs, without padding (RFC 4648, 5).
#[must_use]
pub fn base64url(data: &[u8]) -> String {
    let letter = |letter| match letter {
        '+' => '-',
        '/' => '_',
        other => other,
    };
    base64(data).trim_end_matches('=').chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(data: &[u8]) -> String {
        sha256(data).iter().map(|octet| format!("{octet:02x}")).collect()
    }

    /// NIST's example values for SHA-256, and its test of a million letters.
    #[test]
    fn digests_are_those_of_the_standard() {
        assert_eq!(hex(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(
            hex(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        );
        assert_eq!(
            hex(&[b'a'; 1_000_000]),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
        );
    }

    /// NIST's example values for SHA-224.
    #[test]
    fn short_digests_are_those_of_the_standard() {
        let hex =
            |data: &[u8]| -> String { sha224(data).iter().map(|octet| format!("{octet:02x}")).collect() };
        assert_eq!(hex(b"abc"), "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7");
        assert_eq!(hex(b""), "d14a028c2a3a2bc9476102bb288234c415a2b01f828ea62ac5b3e42f");
        assert_eq!(base64url(&[0xfb, 0xef, 0xff, 0xfe]), "--___g");
    }

    /// RFC 4648, 10.
    #[test]
    fn letters_are_those_of_the_standard() {
        let cases = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (text, letters) in cases {
            assert_eq!(base64(text.as_bytes()), letters);
        }
    }
}
