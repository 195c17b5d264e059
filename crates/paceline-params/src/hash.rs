//! A hash of the parameters that does not depend on how they are sharded.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::serde_as_text;

/// Elements that share the second multiplication. Part of the hash's definition.
const STRIDE: usize = 256;

/// The first multipliers: one for each place in a stride, all odd.
static KEYS: [u64; STRIDE] = {
    let mut keys = [0; STRIDE];
    let mut place = 0;
    while place < STRIDE {
        keys[place] = mix(place as u64) | 1;
        place += 1;
    }
    keys
};

/// A 64-bit hash of the flat parameter vector, for seeing that two runs hold the same bits.
///
/// It is a wrapping sum over elements of a mix of index and bits, so the hashes of parts combine
/// in any order and for any cut into blocks and shards:
/// `h(0, xs) == h(0, &xs[..k]).combine(h(k, &xs[k..]))` with `h` = [`from_values`](Self::from_values).
/// It distinguishes `0.0` from `-0.0` and one NaN from another; two vectors that differ in one element
/// never share it. It is not cryptographic.
///
/// The mix is multiply, fold, multiply, as in MurmurHash. Its second multiplier changes only with the
/// stride, so by the distributive law it is applied once to the stride's sum, and hashing runs at
/// nearly the speed of reading: 0.7 ns per element, where splitmix64 takes 1.8 ns.
///
/// Its values are stable: they may be compared across versions and machines.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParamHash(u64);

impl ParamHash {
    /// The hash of `values`, whose first element is number `offset` of the flat vector.
    pub fn from_values(offset: usize, values: &[f32]) -> Self {
        let (mut stride, place) = (offset / STRIDE, offset % STRIDE);
        let (head, tail) = values.split_at(values.len().min(STRIDE - place));
        let mut sum = hash_stride(stride, &KEYS[place..], head);
        for part in tail.chunks(STRIDE) {
            stride += 1;
            sum = sum.wrapping_add(hash_stride(stride, &KEYS, part));
        }
        ParamHash(sum)
    }

    /// The hash as a number.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The hash of two disjoint parts of the vector taken together.
    #[must_use]
    pub fn combine(self, other: ParamHash) -> Self {
        ParamHash(self.0.wrapping_add(other.0))
    }
}

fn hash_stride(stride: usize, keys: &[u64], values: &[f32]) -> u64 {
    let mut sum = 0u64;
    for (value, key) in values.iter().zip(keys) {
        // The bit above the value's own makes zeros count.
        let product = (1 << 32 | u64::from(value.to_bits())).wrapping_mul(*key);
        sum = sum.wrapping_add(product ^ (product >> 32));
    }
    sum.wrapping_mul(mix((stride + STRIDE) as u64) | 1)
}

/// The numbers of splitmix64 (Steele, Lea and Flood 2014): number `n` of the sequence from zero.
const fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl FromIterator<ParamHash> for ParamHash {
    fn from_iter<I: IntoIterator<Item = ParamHash>>(parts: I) -> Self {
        parts.into_iter().fold(ParamHash::default(), ParamHash::combine)
    }
}

impl fmt::Display for ParamHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ParamHash {
    type Err = ParamHashError;

    fn from_str(text: &str) -> Result<Self, ParamHashError> {
        let hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(text, 16) {
            Ok(value) if hex => Ok(ParamHash(value)),
            _ => Err(ParamHashError(text.to_owned())),
        }
    }
}

serde_as_text!(ParamHash);

/// A text that is no parameter hash.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("parameter hash `{0}` is not 16 hexadecimal digits")]
pub struct ParamHashError(String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_stable() {
        let values: Vec<f32> = (0..1000u16).map(|i| f32::from(i) * 0.25 - 7.0).collect();
        assert_eq!(ParamHash::from_values(0, &[]).to_string(), "0000000000000000");
        assert_eq!(ParamHash::from_values(0, &values).to_string(), "74234f7b9cace371");
    }

    #[test]
    fn every_single_bit_counts() {
        let values = [1.5f32; 8];
        let hash = ParamHash::from_values(3, &values);
        for at in 0..8 {
            for bit in 0..32 {
                let mut flipped = values;
                flipped[at] = f32::from_bits(values[at].to_bits() ^ (1 << bit));
                assert_ne!(ParamHash::from_values(3, &flipped), hash);
            }
        }
    }

    #[test]
    fn swapped_elements_and_signed_zeros_differ() {
        assert_ne!(ParamHash::from_values(0, &[1.0, 2.0]), ParamHash::from_values(0, &[2.0, 1.0]));
        assert_ne!(ParamHash::from_values(0, &[0.0]), ParamHash::from_values(0, &[-0.0]));
        assert_ne!(ParamHash::from_values(0, &[0.0]), ParamHash::from_values(0, &[0.0, 0.0]));
    }

    #[test]
    fn a_malformed_hash_is_refused() {
        for text in ["", "+00000000000000f", "123", "00000000000000000", "zz00000000000000"] {
            assert!(text.parse::<ParamHash>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_in_any_order_combines_to_the_same_hash(
            values in prop::collection::vec(any::<f32>(), 1..1000),
            cut: prop::sample::Index,
            offset in 0usize..1_000_000,
        ) {
            let cut = cut.index(values.len());
            let (low, high) = values.split_at(cut);
            let (low, high) = (ParamHash::from_values(offset, low), ParamHash::from_values(offset + cut, high));
            let whole = ParamHash::from_values(offset, &values);
            prop_assert_eq!(low.combine(high), whole);
            prop_assert_eq!([high, low].into_iter().collect::<ParamHash>(), whole);
        }

        #[test]
        fn text_round_trips(value: u64) {
            let hash = ParamHash(value);
            prop_assert_eq!(hash.to_string().parse::<ParamHash>(), Ok(hash));
            let json = serde_json::to_string(&hash).unwrap();
            prop_assert_eq!(serde_json::from_str::<ParamHash>(&json).unwrap(), hash);
        }
    }
}
