//! Policies by name, as users write them.

use std::{fmt, str::FromStr};

use paceline_core::Policy;
use serde::{Deserialize, Serialize, de};
use thiserror::Error;

use crate::{Cutoff, Full, Static};

/// A policy's name and settings: `full`, `static:3`, `static:0.9`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PolicySpec {
    /// Wait for all.
    Full,
    /// Wait for a fixed count or share.
    Static(Cutoff),
}

/// What is wrong with a policy's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicySpecError {
    /// No policy is called that.
    #[error("unknown policy `{0}`: known are full, static:N and static:FRACTION")]
    Unknown(String),
    /// The count or share after `static:` is not one.
    #[error(
        "`static:{0}` is not a cutoff: write a count from 1 (static:3) or a fraction over 0 and up \
         to 1 with a point (static:0.9)"
    )]
    BadCutoff(String),
}

impl PolicySpec {
    /// The policy itself, ready for its first round.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicySpec::Full => Box::new(Full),
            PolicySpec::Static(cutoff) => Box::new(Static(cutoff)),
        }
    }
}

impl Default for PolicySpec {
    fn default() -> Self {
        PolicySpec::Static(Cutoff::Fraction(0.9))
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicySpec::Full => write!(f, "full"),
            PolicySpec::Static(cutoff) => write!(f, "static:{cutoff}"),
        }
    }
}

impl FromStr for PolicySpec {
    type Err = PolicySpecError;

    fn from_str(text: &str) -> Result<Self, PolicySpecError> {
        match text.split_once(':') {
            None if text == "full" => Ok(PolicySpec::Full),
            Some(("static", cutoff)) => parse_cutoff(cutoff)
                .map(PolicySpec::Static)
                .ok_or_else(|| PolicySpecError::BadCutoff(cutoff.to_owned())),
            None if text == "static" => Err(PolicySpecError::BadCutoff(String::new())),
            _ => Err(PolicySpecError::Unknown(text.to_owned())),
        }
    }
}

fn parse_cutoff(text: &str) -> Option<Cutoff> {
    if let Ok(count) = text.parse::<u32>() {
        return (count > 0).then_some(Cutoff::Count(count));
    }
    let fraction: f64 = text.parse().ok()?;
    (fraction > 0.0 && fraction <= 1.0).then_some(Cutoff::Fraction(fraction))
}

impl Serialize for PolicySpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let got = text.parse::<PolicySpec>().map(|s| s.to_string()).map_err(|e| e.to_string());
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(got), Err(part)) => assert!(got.contains(part), "{got}"),
            (got, expected) => panic!("{text}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn names_parse_or_say_what_would() {
        check("full", Ok("full"));
        check("static:3", Ok("static:3"));
        check("static:0.9", Ok("static:0.9"));
        check("static:1.0", Ok("static:1.0"));
        check("static:0", Err("not a cutoff"));
        check("static:1.5", Err("not a cutoff"));
        check("static:NaN", Err("not a cutoff"));
        check("static:-1", Err("not a cutoff"));
        check("static", Err("not a cutoff"));
        check("fastest", Err("unknown policy `fastest`"));
        check("full:3", Err("unknown policy"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_what_parses_prints_back(text in "(static:)?[0-9a-z.:eE+-]{0,12}") {
            if let Ok(spec) = text.parse::<PolicySpec>() {
                prop_assert_eq!(spec.to_string().parse::<PolicySpec>(), Ok(spec));
            }
        }
    }
}
