//! How long shards are waited for, as users write it.

use std::{fmt, str::FromStr};

use paceline_core::{Shards, WaitRule};
use serde::{Deserialize, Serialize};

use crate::{Cutoff, PolicySpec, Rule};

/// How many blocks are enough, to compute with or to count a contribution: `all`, a share of them
/// (`0.75`), or as many as pay (`auto`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "Written")]
pub enum Enough {
    /// All, so that everything is of one version, and every contribution is whole.
    #[default]
    All,
    /// Those that are the first to have so large a share.
    Share(f64),
    /// Those for whom it pays to wait, by the rule that decides about workers.
    Auto,
}

impl Enough {
    /// Shards of so many blocks each, waited for while it pays, until so many blocks are fresh in any
    /// case, and for those that have missed `most_stale` updates. A share is no reason to leave out
    /// whoever comes last by a hair.
    pub fn shards(self, blocks: &[u32], most_stale: u64) -> Shards {
        let policy = match self {
            Enough::All => PolicySpec::Full,
            Enough::Share(_) | Enough::Auto => PolicySpec::Filter(Rule::Renewal),
        };
        Shards::new(blocks, policy.build(), self.least(blocks), most_stale)
    }

    /// The same for answers that come over a link, each to a question of its own: the first that are
    /// enough, or while it pays.
    pub fn asked_anew(self, blocks: &[u32], most_stale: u64) -> Shards {
        let policy = match self {
            Enough::All => PolicySpec::Full,
            Enough::Share(_) => PolicySpec::Static(Cutoff::Count(1)),
            Enough::Auto => PolicySpec::Filter(Rule::Renewal),
        };
        Shards::asked_anew(blocks, policy.build(), self.least(blocks), most_stale)
    }

    fn least(self, blocks: &[u32]) -> u32 {
        let share = match self {
            Enough::All => 1.0,
            Enough::Share(share) => share,
            Enough::Auto => 0.0,
        };
        Cutoff::Fraction(share).of(blocks.iter().sum::<u32>() as usize) as u32
    }

    /// Whether a share asks for so much that none of such shards can be left out.
    pub fn needs_all(self, blocks: &[u32]) -> bool {
        let all: u32 = blocks.iter().sum();
        let smallest = blocks.iter().min().copied().unwrap_or(0);
        matches!(self, Enough::Share(_)) && self.least(blocks) > all - smallest
    }

    /// Makes what waits so for what a worker has on the way to such shards, or from them; nothing if it
    /// is for all of them.
    pub fn rule(self, blocks: &[u32], most_stale: u64) -> Option<WaitRule> {
        let blocks = blocks.to_vec();
        let rule = move || self.asked_anew(&blocks, most_stale);
        (self != Enough::All).then(|| Box::new(rule) as WaitRule)
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

/// As files have it: a word, or a share as a number.
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
    fn a_share_may_need_every_shard() {
        let needs_all =
            |text: &str, blocks: &[u32]| text.parse::<Enough>().unwrap().needs_all(blocks);
        assert!(needs_all("0.75", &[4, 4]) && !needs_all("0.5", &[4, 4]));
        assert!(!needs_all("0.75", &[4; 4]) && !needs_all("0.75", &[7, 1]));
        assert!(!needs_all("auto", &[1]) && !needs_all("all", &[1]));
    }
}
