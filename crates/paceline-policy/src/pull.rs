//! How long shards are waited for, as users write it.

use std::{fmt, str::FromStr};

use paceline_core::Shards;
use serde::{Deserialize, Serialize};

use crate::{Cutoff, PolicySpec, Rule};

/// Which shards a round needs: `all`, a share of the blocks (`0.75`), or as many as pay (`auto`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Pull {
    /// All, so that every worker has the same version of everything.
    #[default]
    All,
    /// Those that are the first to have so large a share.
    Share(f64),
    /// Those for whom it pays to wait, by the rule that decides about workers.
    Auto,
}

impl Pull {
    /// Shards of so many blocks each, waited for so, and in any case once they have missed
    /// `most_stale` updates.
    pub fn shards(self, blocks: &[u32], most_stale: u64) -> Shards {
        let (policy, share) = match self {
            Pull::All => (PolicySpec::Full, 1.0),
            Pull::Share(share) => (PolicySpec::Static(Cutoff::Count(1)), share),
            Pull::Auto => (PolicySpec::Filter(Rule::Renewal), 0.0),
        };
        let least = Cutoff::Fraction(share).of(blocks.iter().sum::<u32>() as usize);
        Shards::new(blocks, policy.build(), least as u32, most_stale)
    }
}

impl FromStr for Pull {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("all", _) => Ok(Pull::All),
            ("auto", _) => Ok(Pull::Auto),
            (_, Ok(share)) if share > 0.0 && share <= 1.0 => Ok(Pull::Share(share)),
            _ => Err(format!("`{text}`: use all, auto, or a share of the blocks such as 0.75")),
        }
    }
}

impl TryFrom<String> for Pull {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pull> for String {
    fn from(pull: Pull) -> String {
        pull.to_string()
    }
}

impl fmt::Display for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pull::All => f.write_str("all"),
            Pull::Share(share) => write!(f, "{share}"),
            Pull::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_back_as_written_or_say_what_would_do() {
        for text in ["all", "auto", "0.75", "1"] {
            assert_eq!(text.parse::<Pull>().unwrap().to_string(), text);
        }
        for text in ["most", "0", "1.5", "-1", "NaN", ""] {
            assert!(text.parse::<Pull>().unwrap_err().contains("use all, auto"), "{text}");
        }
    }
}
