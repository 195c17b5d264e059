//! The user's setting for how many blocks are enough.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The number of blocks that must be fresh before a worker computes with them, or complete before a
/// contribution counts: `all`, a share of them (`0.75`), or as many as are worth the wait (`auto`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "Written")]
pub enum Enough {
    /// Every block: all parameters have one version, and every contribution is whole.
    #[default]
    All,
    /// The first blocks that make up this share, in (0, 1].
    Share(f64),
    /// The blocks that a policy over response times finds worth the wait.
    Auto,
}

impl Enough {
    /// The least number of fresh blocks, at least 1, given the number of `blocks` on each shard.
    pub fn least(self, blocks: &[u32]) -> u32 {
        let all: u32 = blocks.iter().sum();
        let share = match self {
            Enough::All => 1.0,
            Enough::Share(share) => share,
            Enough::Auto => 0.0,
        };
        // 0.9 × 10 is 9.000…02 in binary; a product within rounding of a whole number means that number.
        let least = (share * f64::from(all) - 1e-9).ceil() as u32;
        least.clamp(1, all.max(1))
    }

    /// Whether this is a share so large that no shard can be left out.
    pub fn needs_all(self, blocks: &[u32]) -> bool {
        let all: u32 = blocks.iter().sum();
        let smallest = blocks.iter().min().copied().unwrap_or(0);
        matches!(self, Enough::Share(_)) && self.least(blocks) > all - smallest
    }
}

impl FromStr for Enough {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("all", _) => Ok(Enough::All),
            ("auto", _) => Ok(Enough::Auto),
            (_, Ok(share)) if share > 0.0 && share <= 1.0 => Ok(Enough::Share(share)),
            _ => Err(format!("`{text}`: use all, auto, or a share of the blocks such as 0.75")),
        }
    }
}

/// The form in a configuration file: a word, or a share as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    Share(f64),
}

impl TryFrom<Written> for Enough {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Word(text) => text.parse(),
            Written::Share(share) => share.to_string().parse(),
        }
    }
}

impl From<Enough> for String {
    fn from(enough: Enough) -> String {
        enough.to_string()
    }
}

impl fmt::Display for Enough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enough::All => f.write_str("all"),
            Enough::Share(share) => write!(f, "{share}"),
            Enough::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_back_as_written_or_say_what_would_do() {
        for text in ["all", "auto", "0.75", "1"] {
            assert_eq!(text.parse::<Enough>().unwrap().to_string(), text);
        }
        for text in ["most", "0", "1.5", "-1", "NaN", ""] {
            assert!(text.parse::<Enough>().unwrap_err().contains("use all, auto"), "{text}");
        }
    }

    #[test]
    fn the_least_is_all_a_share_rounded_up_or_a_single_block() {
        let least = |text: &str, blocks: &[u32]| text.parse::<Enough>().unwrap().least(blocks);
        assert_eq!(least("all", &[3, 4]), 7);
        assert_eq!((least("0.9", &[4]), least("0.9", &[4, 6])), (4, 9));
        assert_eq!((least("auto", &[3, 4]), least("0.1", &[1])), (1, 1));
    }

    #[test]
    fn a_share_may_need_every_shard() {
        let needs_all =
            |text: &str, blocks: &[u32]| text.parse::<Enough>().unwrap().needs_all(blocks);
        assert!(needs_all("0.75", &[4, 4]) && !needs_all("0.5", &[4, 4]));
        assert!(!needs_all("0.75", &[4; 4]) && !needs_all("0.75", &[7, 1]));
        assert!(!needs_all("auto", &[1]) && !needs_all("all", &[1]));
    }
}
