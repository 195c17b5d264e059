//! Policy names and settings, as users write them.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use paceline_core::Policy;
use paceline_model::{Model, TrackerOptions};
use serde::{Deserialize, Serialize, de};
use thiserror::Error;

use crate::{
    Auto, Bandit, Bdsgd, Blend, Cutoff, Deadline, DropCompute, Elfving, Empirical, Filter, Full,
    Learned, Objective, Rule, Stale, Static, predict::Predictor,
};

/// A policy's name and settings: `auto`, `static:0.9`, `filter:commit`, `deadline:0.25`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum PolicySpec {
    /// A mixture of the others.
    #[default]
    Auto,
    /// The mixture of the three models below, without fixed counts.
    Blend(Rule),
    /// Wait for all.
    Full,
    /// Wait for a fixed count or share.
    Static(Cutoff),
    /// iid normal run-times.
    Elfving(Rule),
    /// The empirical distribution of recent run-times.
    Empirical(Rule),
    /// A level for each worker, common factors, change points.
    Filter(Rule),
    /// The deep generative model of joint run-times.
    Bdsgd(Rule, TrackerOptions),
    /// A count learnt by trial.
    Bandit,
    /// A fixed deadline.
    Deadline(Duration),
    /// A deadline profiled over this many rounds.
    DropCompute(u32),
    /// A round per arrival, with an optional bound on staleness.
    Stale(Option<u64>),
}

/// Why a text names no policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicySpecError {
    /// The policy is unknown.
    #[error("unknown policy `{0}`: `paceline policies` lists them ({names})", names = names())]
    Unknown(String),
    /// The setting after the colon is invalid.
    #[error("`{policy}:{setting}` is not a policy: {expected}")]
    BadSetting {
        /// The policy.
        policy: &'static str,
        /// The setting given.
        setting: String,
        /// The settings expected.
        expected: &'static str,
    },
}

/// Every policy as users write it, with a one-line description.
pub const POLICIES: [(&str, &str); 13] = [
    (
        "auto",
        "the default: an expert mixture that cuts each round when waiting no longer pays, by progress \
         (or by samples: --objective samples; always in simulate, which has no gradients)",
    ),
    ("full", "wait for all live workers"),
    ("static:N", "wait for the first N, or for a fraction (static:0.9): backup workers"),
    (
        "blend",
        "filter, bdsgd and empirical as a mixture, weighted by how well each predicts (blend:commit)",
    ),
    (
        "filter",
        "a level for each worker, the cluster's common factor, change points (filter:commit)",
    ),
    (
        "bdsgd",
        "a deep generative model of joint run-times (bdsgd:paper commits to a count before the \
         round; +impute draws censored times; +frozen does not adapt)",
    ),
    ("empirical", "the distribution of recent run-times, pooled over workers (empirical:commit)"),
    ("elfving", "iid normal run-times, count fixed before the round (elfving:renewal)"),
    ("bandit", "learns the best count by trial"),
    ("deadline:T", "cut T seconds after the round opened, or at the first arrival after that"),
    ("dropcompute", "cut at a deadline profiled over the first 20 rounds (dropcompute:ROUNDS)"),
    (
        "async",
        "an update per arrival, however old the version it was computed from; arrivals during an \
         update share the next",
    ),
    ("stale:S", "like async, but waits for a worker that would be more than S versions behind"),
];

fn names() -> String {
    POLICIES.map(|(name, _)| name).join(", ")
}

impl PolicySpec {
    /// The policy, ready for its first round; a model of run-times starts from the generic prior.
    pub fn build(self) -> Box<dyn Policy> {
        self.build_with(&Model::prior(), Objective::Samples)
    }

    /// The policy with a fitted model and an objective, if it uses them.
    pub fn build_with(self, model: &Arc<Model>, objective: Objective) -> Box<dyn Policy> {
        let learned = |predictor: Box<dyn Predictor>, rule: Rule| -> Box<dyn Policy> {
            Box::new(Learned::new(predictor, rule, objective, self.to_string()))
        };
        match self {
            PolicySpec::Auto => Box::new(Auto::new(model, objective)),
            PolicySpec::Blend(rule) => learned(Box::new(Blend::of_all(model)), rule),
            PolicySpec::Full => Box::new(Full),
            PolicySpec::Static(cutoff) => Box::new(Static(cutoff)),
            PolicySpec::Elfving(rule) => learned(Box::<Elfving>::default(), rule),
            PolicySpec::Empirical(rule) => learned(Box::<Empirical>::default(), rule),
            PolicySpec::Filter(rule) => learned(Box::<Filter>::default(), rule),
            PolicySpec::Bdsgd(rule, options) => learned(Box::new(Bdsgd::new(model, options)), rule),
            PolicySpec::Bandit => Box::new(Bandit::default()),
            PolicySpec::Deadline(after) => Box::new(Deadline(after)),
            PolicySpec::DropCompute(profile) => Box::new(DropCompute::new(profile)),
            PolicySpec::Stale(bound) => Box::new(Stale { bound }),
        }
    }
}

impl PolicySpec {
    /// Whether it predicts each worker's run-time, so that work can be balanced by it.
    pub fn foresees(self) -> bool {
        matches!(self, PolicySpec::Auto | PolicySpec::Blend(_) | PolicySpec::Filter(_))
    }

    /// The default objective. `auto` maximises what users want; the others follow their papers.
    pub fn objective(self) -> Objective {
        if self == PolicySpec::Auto { Objective::Progress } else { Objective::Samples }
    }

    /// Whether it weighs gains against time, so that the objective matters.
    pub fn weighs(self) -> bool {
        matches!(
            self,
            PolicySpec::Auto
                | PolicySpec::Blend(_)
                | PolicySpec::Elfving(_)
                | PolicySpec::Empirical(_)
                | PolicySpec::Filter(_)
                | PolicySpec::Bdsgd(..)
        )
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rule = |name: &str, rule: Rule, default: Rule| match rule == default {
            true => f.write_str(name),
            false => write!(f, "{name}:{rule}"),
        };
        match *self {
            PolicySpec::Auto => f.write_str("auto"),
            PolicySpec::Blend(of) => rule("blend", of, Rule::Renewal),
            PolicySpec::Elfving(of) => rule("elfving", of, Rule::Commit),
            PolicySpec::Empirical(of) => rule("empirical", of, Rule::Renewal),
            PolicySpec::Filter(of) => rule("filter", of, Rule::Renewal),
            PolicySpec::Bdsgd(rule, options) => {
                let words = [
                    (rule == Rule::Commit, "paper"),
                    (options.impute, "impute"),
                    (options.frozen, "frozen"),
                ];
                let words: Vec<&str> = words.iter().filter(|w| w.0).map(|w| w.1).collect();
                let colon = if words.is_empty() { "" } else { ":" };
                write!(f, "bdsgd{colon}{}", words.join("+"))
            }
            PolicySpec::Full => f.write_str(&Full.name()),
            PolicySpec::Static(cutoff) => f.write_str(&Static(cutoff).name()),
            PolicySpec::Bandit => f.write_str("bandit"),
            PolicySpec::Deadline(after) => f.write_str(&Deadline(after).name()),
            PolicySpec::DropCompute(profile) => f.write_str(&DropCompute::new(profile).name()),
            PolicySpec::Stale(bound) => f.write_str(&Stale { bound }.name()),
        }
    }
}

impl FromStr for PolicySpec {
    type Err = PolicySpecError;

    fn from_str(text: &str) -> Result<Self, PolicySpecError> {
        let (name, setting) = match text.split_once(':') {
            Some((name, setting)) => (name, Some(setting)),
            None => (text, None),
        };
        let rule = |default: Rule, policy: &'static str| match setting {
            None => Ok(default),
            Some("renewal") => Ok(Rule::Renewal),
            Some("commit") => Ok(Rule::Commit),
            Some(other) => Err(bad(policy, other, "its rules are renewal and commit")),
        };
        match (name, setting) {
            ("auto", None) => Ok(PolicySpec::Auto),
            ("full", None) => Ok(PolicySpec::Full),
            ("async", None) => Ok(PolicySpec::Stale(None)),
            ("stale", _) => match setting.unwrap_or_default().parse() {
                Ok(bound) => Ok(PolicySpec::Stale(Some(bound))),
                Err(_) => Err(bad(
                    "stale",
                    setting.unwrap_or_default(),
                    "write versions from 0 (stale:4)",
                )),
            },
            ("bandit", None) => Ok(PolicySpec::Bandit),
            ("blend", _) => rule(Rule::Renewal, "blend").map(PolicySpec::Blend),
            ("elfving", _) => rule(Rule::Commit, "elfving").map(PolicySpec::Elfving),
            ("empirical", _) => rule(Rule::Renewal, "empirical").map(PolicySpec::Empirical),
            ("bdsgd", _) => parse_bdsgd(setting),
            ("filter", _) => rule(Rule::Renewal, "filter").map(PolicySpec::Filter),
            ("static", _) => parse_cutoff(setting.unwrap_or_default()).map(PolicySpec::Static),
            ("deadline", _) => parse_deadline(setting.unwrap_or_default()),
            ("dropcompute", None) => Ok(PolicySpec::DropCompute(DropCompute::PROFILE)),
            ("dropcompute", Some(rounds)) => match rounds.parse() {
                Ok(rounds) if rounds > 0 => Ok(PolicySpec::DropCompute(rounds)),
                _ => Err(bad("dropcompute", rounds, "write a number of rounds from 1")),
            },
            _ => Err(PolicySpecError::Unknown(text.to_owned())),
        }
    }
}

fn bad(policy: &'static str, setting: &str, expected: &'static str) -> PolicySpecError {
    PolicySpecError::BadSetting { policy, setting: setting.to_owned(), expected }
}

fn parse_bdsgd(setting: Option<&str>) -> Result<PolicySpec, PolicySpecError> {
    let (mut rule, mut options) = (Rule::Renewal, TrackerOptions::default());
    for word in setting.into_iter().flat_map(|setting| setting.split('+')) {
        match word {
            "paper" => rule = Rule::Commit,
            "impute" => options.impute = true,
            "frozen" => options.frozen = true,
            _ => {
                let expected = "join any of paper, impute and frozen by + (bdsgd:paper+impute)";
                return Err(bad("bdsgd", setting.unwrap_or_default(), expected));
            }
        }
    }
    Ok(PolicySpec::Bdsgd(rule, options))
}

fn parse_cutoff(text: &str) -> Result<Cutoff, PolicySpecError> {
    let cutoff = match text.parse::<u32>() {
        Ok(count) => (count > 0).then_some(Cutoff::Count(count)),
        Err(_) => {
            let fraction = text.parse::<f64>().unwrap_or(f64::NAN);
            (fraction > 0.0 && fraction <= 1.0).then_some(Cutoff::Fraction(fraction))
        }
    };
    let expected = "write a count from 1 (static:3) or a fraction over 0 and up to 1 with a point \
                    (static:0.9)";
    cutoff.ok_or_else(|| bad("static", text, expected))
}

fn parse_deadline(text: &str) -> Result<PolicySpec, PolicySpecError> {
    let seconds = text.parse::<f64>().unwrap_or(f64::NAN);
    match seconds > 0.0 {
        true => Duration::try_from_secs_f64(seconds).ok().filter(|after| !after.is_zero()),
        false => None,
    }
    .map(PolicySpec::Deadline)
    .ok_or_else(|| bad("deadline", text, "write seconds over 0 (deadline:0.25)"))
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
    fn names_parse_or_the_error_says_what_is_expected() {
        check("auto", Ok("auto"));
        check("full", Ok("full"));
        check("static:3", Ok("static:3"));
        check("static:0.9", Ok("static:0.9"));
        check("static:1.0", Ok("static:1.0"));
        check("blend", Ok("blend"));
        check("blend:commit", Ok("blend:commit"));
        check("filter", Ok("filter"));
        check("filter:renewal", Ok("filter"));
        check("filter:commit", Ok("filter:commit"));
        check("bdsgd", Ok("bdsgd"));
        check("bdsgd:paper", Ok("bdsgd:paper"));
        check("bdsgd:frozen+paper+impute", Ok("bdsgd:paper+impute+frozen"));
        check("bdsgd:", Err("paper, impute and frozen"));
        check("bdsgd:deep", Err("paper, impute and frozen"));
        check("elfving", Ok("elfving"));
        check("elfving:commit", Ok("elfving"));
        check("elfving:renewal", Ok("elfving:renewal"));
        check("empirical:commit", Ok("empirical:commit"));
        check("deadline:0.25", Ok("deadline:0.25"));
        check("async", Ok("async"));
        check("stale:4", Ok("stale:4"));
        check("stale", Err("write versions"));
        check("stale:-1", Err("write versions"));
        check("dropcompute", Ok("dropcompute"));
        check("dropcompute:5", Ok("dropcompute:5"));
        check("static:0", Err("write a count from 1"));
        check("static:1.5", Err("write a count from 1"));
        check("static:NaN", Err("write a count from 1"));
        check("static:-1", Err("write a count from 1"));
        check("static", Err("write a count from 1"));
        check("deadline:0", Err("write seconds"));
        check("deadline", Err("write seconds"));
        check("filter:fast", Err("renewal and commit"));
        check("dropcompute:0", Err("number of rounds"));
        check("fastest", Err("unknown policy `fastest`"));
        check("full:3", Err("unknown policy"));
    }

    #[test]
    fn every_listed_policy_can_be_built() {
        for (name, _) in POLICIES {
            let written = name.replace(":N", ":3").replace(":T", ":1.5").replace(":S", ":4");
            let spec: PolicySpec = written.parse().expect("what is listed parses");
            assert_eq!(spec.build().name(), written);
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_what_parses_prints_back(
            text in "(static:|deadline:|dropcompute:)?[0-9a-z.:eE+-]{0,12}"
        ) {
            if let Ok(spec) = text.parse::<PolicySpec>() {
                prop_assert_eq!(spec.to_string().parse::<PolicySpec>(), Ok(spec));
            }
        }
    }
}
