//! Names and parameters of synthetic clusters, as users write them.

use std::{fmt, str::FromStr};

use thiserror::Error;

use super::{Cluster, GENERATORS, Generator};
use crate::MAX_CELLS;

/// A generator and its parameters: `nodes158`, `nodes158:n=64,nodes=8,phases=wall-clock`,
/// `lognormal:sigma=0.3`.
#[derive(Debug, Clone)]
pub struct SyntheticSpec {
    generator: &'static Generator,
    /// One value per key of the generator.
    values: Vec<f64>,
    phases: Phases,
}

/// How slow phases and drifts advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phases {
    /// By one step per round, however long the round.
    #[default]
    Rounds,
    /// By the clock: probabilities hold per unit of the undisturbed mean run-time, so that cutting
    /// early does not end a slow phase sooner.
    WallClock,
}

/// Why a text names no synthetic cluster.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SyntheticSpecError {
    /// The generator is unknown.
    #[error("unknown generator `{name}`: known are {}", listed(GENERATORS.iter().map(|g| g.name)))]
    UnknownName {
        /// The name.
        name: String,
    },
    /// The generator has no parameter of this name.
    #[error("unknown key `{key}` of `{generator}`: known are {known} and phases")]
    UnknownKey {
        /// The generator.
        generator: &'static str,
        /// The key.
        key: String,
        /// The keys that it has.
        known: String,
    },
    /// A parameter is not `key=value`, or is given twice.
    #[error("`{0}` is not a parameter: write each key once, as key=value, separated by commas")]
    NotAParameter(String),
    /// A value is invalid for its key.
    #[error("`{value}` is not a value of `{key}`: write {wanted}")]
    BadValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The values expected.
        wanted: String,
    },
}

impl SyntheticSpec {
    /// The generator's name.
    pub fn name(&self) -> &'static str {
        self.generator.name
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.count("n")
    }

    /// The number of rounds.
    pub fn rounds(&self) -> usize {
        self.count("rounds")
    }

    /// How phases advance.
    pub fn phases(&self) -> Phases {
        self.phases
    }

    /// The value of a parameter, if the generator has it.
    pub fn parameter(&self, key: &str) -> Option<f64> {
        let at = self.generator.keys.iter().position(|k| k.name == key)?;
        Some(self.values[at])
    }

    /// The cluster itself, before its first round.
    pub fn source(&self, seed: u64) -> Cluster {
        Cluster::new((self.generator.model)(self), self.phases, seed)
    }

    pub(super) fn at(&self, key: &str) -> f64 {
        self.parameter(key).expect("a generator's model reads its own keys")
    }

    pub(super) fn count(&self, key: &str) -> usize {
        self.at(key) as usize
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SyntheticSpecError> {
        let bad = |wanted: String| {
            let (key, value) = (key.to_owned(), value.to_owned());
            SyntheticSpecError::BadValue { key, value, wanted }
        };
        if key == "phases" {
            self.phases = value.parse().map_err(|()| bad("rounds or wall-clock".into()))?;
            return Ok(());
        }
        let keys = self.generator.keys;
        let at = keys.iter().position(|k| k.name == key).ok_or_else(|| {
            SyntheticSpecError::UnknownKey {
                generator: self.name(),
                key: key.to_owned(),
                known: listed(keys.iter().map(|k| k.name)),
            }
        })?;
        let (range, whole) = (&keys[at].range, keys[at].whole);
        let parsed = value.parse::<f64>().ok();
        self.values[at] = parsed
            .filter(|x| range.contains(x) && (!whole || x.fract() == 0.0))
            .ok_or_else(|| {
                let kind = if whole { "a whole number" } else { "a number" };
                bad(format!("{kind} from {} to {}", range.start(), range.end()))
            })?;
        Ok(())
    }

    /// Checks parameters that depend on each other.
    fn checked(self) -> Result<SyntheticSpec, SyntheticSpecError> {
        let most_rounds = MAX_CELLS / self.workers();
        let bad = |key: &str, wanted: String| {
            let value = self.at(key).to_string();
            Err(SyntheticSpecError::BadValue { key: key.to_owned(), value, wanted })
        };
        if self.rounds() > most_rounds {
            return bad("rounds", format!("at most {most_rounds} with so many workers"));
        }
        if self.parameter("nodes").is_some_and(|nodes| nodes > self.at("n")) {
            return bad("nodes", format!("at most the number of workers, {}", self.workers()));
        }
        if self.parameter("node").is_some_and(|node| node >= self.at("nodes")) {
            return bad("node", format!("a node from 0 to {}", self.at("nodes") - 1.0));
        }
        Ok(self)
    }
}

fn listed(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

impl PartialEq for SyntheticSpec {
    fn eq(&self, other: &SyntheticSpec) -> bool {
        self.name() == other.name() && self.values == other.values && self.phases == other.phases
    }
}

impl FromStr for SyntheticSpec {
    type Err = SyntheticSpecError;

    fn from_str(text: &str) -> Result<SyntheticSpec, SyntheticSpecError> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let generator = GENERATORS
            .iter()
            .find(|g| g.name == name)
            .ok_or_else(|| SyntheticSpecError::UnknownName { name: name.to_owned() })?;
        let values = generator.keys.iter().map(|key| key.default).collect();
        let mut spec = SyntheticSpec { generator, values, phases: Phases::default() };
        let mut given = Vec::new();
        for pair in parameters.split(',').filter(|_| !parameters.is_empty()) {
            let not_one = || SyntheticSpecError::NotAParameter(pair.to_owned());
            let (key, value) = pair.split_once('=').ok_or_else(not_one)?;
            if given.contains(&key) {
                return Err(not_one());
            }
            given.push(key);
            spec.set(key, value)?;
        }
        spec.checked()
    }
}

impl fmt::Display for SyntheticSpec {
    /// The name, and the values that differ from the defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let mut mark = ':';
        for (key, value) in self.generator.keys.iter().zip(&self.values) {
            if *value != key.default {
                write!(f, "{mark}{}={value}", key.name)?;
                mark = ',';
            }
        }
        if self.phases == Phases::WallClock {
            write!(f, "{mark}phases=wall-clock")?;
        }
        Ok(())
    }
}

impl FromStr for Phases {
    type Err = ();

    fn from_str(text: &str) -> Result<Phases, ()> {
        match text {
            "rounds" => Ok(Phases::Rounds),
            "wall-clock" => Ok(Phases::WallClock),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let got = text.parse::<SyntheticSpec>().map(|s| s.to_string()).map_err(|e| e.to_string());
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(got), Err(part)) => assert!(got.contains(part), "{got}"),
            (got, expected) => panic!("{text}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn names_parse_or_the_error_says_what_is_expected() {
        check("nodes158", Ok("nodes158"));
        check("nodes158:", Ok("nodes158"));
        check("nodes158:p=0.05,n=64,nodes=8", Ok("nodes158:n=64,nodes=8,p=0.05"));
        check("xc40:phases=wall-clock,n=2175", Ok("xc40:phases=wall-clock"));
        check("lognormal:sigma=0.2", Ok("lognormal"));
        check("phase:at=300,share=0.33,factor=3", Ok("phase:share=0.33"));
        check("failure:node=3,at=10,for=5", Ok("failure:node=3,at=10,for=5"));
        check("nodes", Err("unknown generator `nodes`: known are nodes158, nodes158-stalls"));
        check("ar:p=0.1,q=1", Err("unknown key `q` of `ar`: known are n, rounds, p, coefficient"));
        check("ar:coefficient=1", Err("write a number from 0 to 0.999999"));
        check("xc40:n=1.5", Err("write a whole number from 1 to 1000000"));
        check("xc40:p=NaN", Err("`NaN` is not a value of `p`"));
        check("xc40:phases=weeks", Err("write rounds or wall-clock"));
        check("xc40:n", Err("`n` is not a parameter"));
        check("xc40:n=40,n=50", Err("`n=50` is not a parameter"));
        check("xc40:n=10", Err("`32` is not a value of `nodes`: write at most"));
        check("failure:node=4", Err("a node from 0 to 3"));
        check("normal:n=1000000,rounds=1000", Err("at most 67 with so many workers"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_what_parses_prints_back(
            text in "(nodes158|ar|failure|normal):((n|sd|node|p|at|for|phases)=[0-9a-z.-]{1,5},?){0,4}"
        ) {
            if let Ok(spec) = text.parse::<SyntheticSpec>() {
                prop_assert_eq!(spec.to_string().parse::<SyntheticSpec>(), Ok(spec));
            }
        }
    }
}
