//! Learning-rate schedules.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::{count, number, serde_as_text};

/// A learning-rate schedule: a multiplier of the base rate for every round.
///
/// As text, with rounds as whole numbers of at least 1:
///
/// | text | multiplier in round r, counted from 0 |
/// |---|---|
/// | `constant` | 1 |
/// | `step:EVERY:FACTOR` | FACTOR to the ⌊r / EVERY⌋; FACTOR above 0 and at most 1 |
/// | `cosine:TOTAL` | from 1 to 0 along half a cosine over TOTAL rounds, then 0 |
/// | `cosine:TOTAL:FLOOR` | the same down to FLOOR, in 0 to 1 |
/// | `warmup:ROUNDS+…` | rises linearly for ROUNDS, then any of the above from its round 0 |
///
/// `warmup:100+cosine:9900:0.1` is thus a run of 10,000 rounds.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Schedule {
    warmup: u64,
    shape: Shape,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Shape {
    #[default]
    Constant,
    Step {
        every: u64,
        factor: f32,
    },
    Cosine {
        total: u64,
        floor: f32,
    },
}

impl Schedule {
    /// The base rate throughout.
    pub const CONSTANT: Schedule = Schedule { warmup: 0, shape: Shape::Constant };

    /// The multiplier of the base rate in `round`, counted from 0: in `0..=1`.
    pub fn at(&self, round: u64) -> f32 {
        match round.checked_sub(self.warmup) {
            // One part in warmup + 1 more each round, so that round `warmup` continues the line.
            None => ((round + 1) as f64 / (self.warmup as f64 + 1.0)) as f32,
            Some(round) => self.shape.at(round),
        }
    }
}

impl Shape {
    fn at(self, round: u64) -> f32 {
        match self {
            Shape::Constant => 1.0,
            Shape::Step { every, factor } => f64::from(factor).powf((round / every) as f64) as f32,
            Shape::Cosine { total, floor } if round >= total => floor,
            Shape::Cosine { total, floor } => {
                let angle = std::f64::consts::PI * round as f64 / total as f64;
                let floor = f64::from(floor);
                (floor + (1.0 - floor) * 0.5 * (1.0 + angle.cos())) as f32
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let Some(rest) = text.strip_prefix("warmup:") else {
            return Ok(Schedule { warmup: 0, shape: text.parse()? });
        };
        let Some((warmup, shape)) = rest.split_once('+') else {
            return Err(ScheduleError::NothingAfterWarmup);
        };
        Ok(Schedule { warmup: rounds("ROUNDS", warmup)?, shape: shape.parse()? })
    }
}

impl FromStr for Shape {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["constant"] => Ok(Shape::Constant),
            ["step", every, factor] => {
                let every = rounds("EVERY", every)?;
                let factor = share("FACTOR", factor)?;
                if factor == 0.0 {
                    return Err(ScheduleError::ZeroFactor);
                }
                Ok(Shape::Step { every, factor })
            }
            ["cosine", total] => Ok(Shape::Cosine { total: rounds("TOTAL", total)?, floor: 0.0 }),
            ["cosine", total, floor] => {
                Ok(Shape::Cosine { total: rounds("TOTAL", total)?, floor: share("FLOOR", floor)? })
            }
            _ => Err(ScheduleError::Unknown { text: text.to_owned() }),
        }
    }
}

fn rounds(what: &'static str, text: &str) -> Result<u64, ScheduleError> {
    count(text).ok_or_else(|| ScheduleError::NotACount { what, text: text.to_owned() })
}

fn share(what: &'static str, text: &str) -> Result<f32, ScheduleError> {
    let share = number(text).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| ScheduleError::NotAShare { what, text: text.to_owned() })
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.warmup > 0 {
            write!(f, "warmup:{}+", self.warmup)?;
        }
        match self.shape {
            Shape::Constant => f.write_str("constant"),
            Shape::Step { every, factor } => write!(f, "step:{every}:{factor:?}"),
            Shape::Cosine { total, floor: 0.0 } => write!(f, "cosine:{total}"),
            Shape::Cosine { total, floor } => write!(f, "cosine:{total}:{floor:?}"),
        }
    }
}

serde_as_text!(Schedule);

/// Why a text is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// The schedule is unknown, or takes another number of values.
    #[error(
        "unknown schedule `{text}`: expected constant, step:EVERY:FACTOR or cosine:TOTAL[:FLOOR], \
         each after an optional warmup:ROUNDS+"
    )]
    Unknown {
        /// The text given.
        text: String,
    },
    /// No schedule follows the warm-up.
    #[error("warmup:ROUNDS needs a schedule after it, as in warmup:100+constant")]
    NothingAfterWarmup,
    /// A number of rounds is not a whole number of at least 1.
    #[error("{what} `{text}` is not a whole number of at least 1")]
    NotACount {
        /// Which.
        what: &'static str,
        /// The text given.
        text: String,
    },
    /// A multiplier is not between 0 and 1.
    #[error("{what} `{text}` is not a number from 0 to 1")]
    NotAShare {
        /// Which.
        what: &'static str,
        /// The text given.
        text: String,
    },
    /// A step factor of zero would end all training.
    #[error("FACTOR is zero: training would stop at the first step")]
    ZeroFactor,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(text: &str) -> Schedule {
        text.parse().unwrap()
    }

    #[track_caller]
    fn check(text: &str, expected: &[(u64, f32)]) {
        for &(round, multiplier) in expected {
            let found = schedule(text).at(round);
            assert!((found - multiplier).abs() < 1e-6, "{text} at {round}: {found}");
        }
    }

    #[test]
    fn multipliers_are_as_stated() {
        check("constant", &[(0, 1.0), (u64::MAX, 1.0)]);
        check("step:10:0.5", &[(0, 1.0), (9, 1.0), (10, 0.5), (35, 0.125), (u64::MAX, 0.0)]);
        check("cosine:100", &[(0, 1.0), (50, 0.5), (100, 0.0), (u64::MAX, 0.0)]);
        check("cosine:100:0.2", &[(0, 1.0), (50, 0.6), (100, 0.2), (1000, 0.2)]);
        check("warmup:4+constant", &[(0, 0.2), (3, 0.8), (4, 1.0), (5, 1.0)]);
        check("warmup:4+cosine:100", &[(3, 0.8), (4, 1.0), (54, 0.5), (104, 0.0)]);
    }

    #[track_caller]
    fn check_refused(text: &str, message: &str) {
        assert_eq!(text.parse::<Schedule>().unwrap_err().to_string(), message);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let forms = "expected constant, step:EVERY:FACTOR or cosine:TOTAL[:FLOOR], \
                     each after an optional warmup:ROUNDS+";
        for text in ["", "linear", "step", "step:10", "cosine:1:0:0", "constant:1"] {
            check_refused(text, &format!("unknown schedule `{text}`: {forms}"));
        }
        check_refused("step:0:0.5", "EVERY `0` is not a whole number of at least 1");
        check_refused("step:+5:0.5", "EVERY `+5` is not a whole number of at least 1");
        check_refused("step:5:1.5", "FACTOR `1.5` is not a number from 0 to 1");
        check_refused("step:5:nan", "FACTOR `nan` is not a number from 0 to 1");
        check_refused("step:5:0", "FACTOR is zero: training would stop at the first step");
        check_refused("cosine:ten", "TOTAL `ten` is not a whole number of at least 1");
        check_refused("cosine:10:-0.1", "FLOOR `-0.1` is not a number from 0 to 1");
        check_refused(
            "warmup:5",
            "warmup:ROUNDS needs a schedule after it, as in warmup:100+constant",
        );
        check_refused("warmup:x+constant", "ROUNDS `x` is not a whole number of at least 1");
        check_refused("warmup:5+warmup:5+constant", &{
            format!("unknown schedule `warmup:5+constant`: {forms}")
        });
    }

    fn any_schedule() -> impl Strategy<Value = Schedule> {
        let shape = prop_oneof![
            Just(Shape::Constant),
            (1u64.., f32::MIN_POSITIVE..=1.0)
                .prop_map(|(every, factor)| Shape::Step { every, factor }),
            (1u64.., 0f32..=1.0).prop_map(|(total, floor)| Shape::Cosine { total, floor }),
        ];
        (any::<u64>(), shape).prop_map(|(warmup, shape)| Schedule { warmup, shape })
    }

    proptest! {
        #[test]
        fn text_round_trips(schedule in any_schedule()) {
            prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
            let json = serde_json::to_string(&schedule).unwrap();
            prop_assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule);
        }

        #[test]
        fn multipliers_stay_between_zero_and_one(schedule in any_schedule(), round: u64) {
            prop_assert!((0.0..=1.0).contains(&schedule.at(round)), "{}", schedule.at(round));
        }

        #[test]
        fn parsing_never_panics(text in "(warmup|step|cosine|constant|[-+:.0-9a-z])*") {
            let _ = text.parse::<Schedule>();
        }
    }
}
