//! The optimizers, which turn a folded gradient into new parameters.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::kernel;
use crate::text::{number, serde_as_text};

/// The rule by which a block's values follow its gradients.
///
/// As text: `sgd`, `momentum`, `momentum:0.95`, `adam`, `adamw` or `mean`, with options after a
/// colon and separated by commas: `sgd:weight_decay=1e-4`,
/// `momentum:0.95,nesterov,weight_decay=1e-4`, `adam:beta2=0.95`,
/// `adamw:beta1=0.9,beta2=0.95,eps=1e-8,weight_decay=0.1`. `Display` writes every value, so that a
/// stored text keeps its meaning when a default changes.
///
/// The rules are those of `torch.optim` (`SGD` without dampening, `Adam` without `amsgrad`,
/// `AdamW`), to rounding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerSpec {
    /// `x -= lr * (g + weight_decay * x)`.
    Sgd {
        /// The share of each value added to its gradient, at least 0.
        weight_decay: f32,
    },
    /// Heavy-ball momentum: `u = momentum * u + g + weight_decay * x`, then `x -= lr * u`.
    Momentum {
        /// How much of the velocity is kept, in `0..1`.
        momentum: f32,
        /// Looks ahead: `x -= lr * (g + weight_decay * x + momentum * u)`.
        nesterov: bool,
        /// The share of each value added to its gradient, at least 0.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba 2015) with L2 decay: the gradient is `g + weight_decay * x`.
    Adam {
        /// How much of the mean gradient is kept, in `0..1`.
        beta1: f32,
        /// How much of the mean squared gradient is kept, in `0..1`.
        beta2: f32,
        /// Added to the denominator, above 0.
        eps: f32,
        /// The share of each value added to its gradient, at least 0.
        weight_decay: f32,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW {
        /// How much of the mean gradient is kept, in `0..1`.
        beta1: f32,
        /// How much of the mean squared gradient is kept, in `0..1`.
        beta2: f32,
        /// Added to the denominator, above 0.
        eps: f32,
        /// Values shrink by `lr * weight_decay` in every update, at least 0.
        weight_decay: f32,
    },
    /// The value becomes the averaged gradient itself: workers keep their own optimizer.
    Mean,
}

impl OptimizerSpec {
    /// Plain gradient descent.
    pub const SGD: Self = OptimizerSpec::Sgd { weight_decay: 0.0 };

    /// Heavy-ball momentum that keeps 0.9.
    pub const MOMENTUM: Self =
        OptimizerSpec::Momentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };

    /// Adam with 0.9, 0.999, 1e-8 and no decay.
    pub const ADAM: Self =
        OptimizerSpec::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

    /// AdamW with 0.9, 0.999, 1e-8 and a decay of 0.01.
    pub const ADAMW: Self =
        OptimizerSpec::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };

    /// The names of the vectors of state that the rule keeps beside the values, in the order in
    /// which [`apply`](Self::apply) takes them. They start at zero.
    pub fn slot_names(&self) -> &'static [&'static str] {
        match self {
            OptimizerSpec::Sgd { .. } | OptimizerSpec::Mean => &[],
            OptimizerSpec::Momentum { .. } => &["momentum"],
            OptimizerSpec::Adam { .. } | OptimizerSpec::AdamW { .. } => &["adam_m", "adam_v"],
        }
    }

    /// Applies one update to `values` and `slots` in place, in one pass.
    ///
    /// Elements are independent of each other, so a block may be updated whole or in parts, by
    /// any number of threads, to the same bits.
    ///
    /// # Panics
    /// If lengths differ, or there are not as many slots as [`slot_names`](Self::slot_names).
    pub fn apply(
        &self,
        update: Update,
        grad_sum: &[f32],
        values: &mut [f32],
        slots: &mut [&mut [f32]],
    ) {
        assert_eq!(grad_sum.len(), values.len(), "gradient and values differ in length");
        for slot in slots.iter() {
            assert_eq!(slot.len(), values.len(), "a slot and the values differ in length");
        }
        match (*self, slots) {
            (OptimizerSpec::Sgd { weight_decay }, []) => {
                kernel::sgd(update, weight_decay, grad_sum, values);
            }
            (OptimizerSpec::Momentum { momentum, nesterov, weight_decay }, [velocity]) => {
                let coefficients = kernel::Momentum { momentum, weight_decay };
                if nesterov {
                    coefficients.apply::<true>(update, grad_sum, values, velocity);
                } else {
                    coefficients.apply::<false>(update, grad_sum, values, velocity);
                }
            }
            (OptimizerSpec::Adam { beta1, beta2, eps, weight_decay }, [mean, square]) => {
                kernel::Adam::new(update, beta1, beta2, eps, weight_decay)
                    .apply::<false>(grad_sum, values, mean, square);
            }
            (OptimizerSpec::AdamW { beta1, beta2, eps, weight_decay }, [mean, square]) => {
                kernel::Adam::new(update, beta1, beta2, eps, weight_decay)
                    .apply::<true>(grad_sum, values, mean, square);
            }
            (OptimizerSpec::Mean, []) => kernel::mean(update, grad_sum, values),
            (_, slots) => {
                panic!("{} slots for an optimizer with {:?}", slots.len(), self.slot_names())
            }
        }
    }

    /// Checks every value against its range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        for (option, value) in self.options() {
            let (holds, expected) = match option {
                "weight_decay" => (value >= 0.0, "at least 0"),
                "eps" => (value > 0.0, "above 0"),
                _ => ((0.0..1.0).contains(&value), "at least 0 and below 1"),
            };
            if !(holds && value.is_finite()) {
                return Err(OptimizerError::OutOfRange { option, value, expected });
            }
        }
        Ok(())
    }

    /// Whether the two differ in nothing but their options.
    pub(crate) fn is_same_rule(&self, other: &Self) -> bool {
        self.name() == other.name()
    }

    fn name(&self) -> &'static str {
        match self {
            OptimizerSpec::Sgd { .. } => "sgd",
            OptimizerSpec::Momentum { .. } => "momentum",
            OptimizerSpec::Adam { .. } => "adam",
            OptimizerSpec::AdamW { .. } => "adamw",
            OptimizerSpec::Mean => "mean",
        }
    }

    fn options(&self) -> Vec<(&'static str, f32)> {
        let mut copy = *self;
        copy.options_mut().into_iter().map(|(name, value)| (name, *value)).collect()
    }

    fn options_mut(&mut self) -> Vec<(&'static str, &mut f32)> {
        match self {
            OptimizerSpec::Sgd { weight_decay } => vec![("weight_decay", weight_decay)],
            OptimizerSpec::Momentum { momentum, weight_decay, .. } => {
                vec![("momentum", momentum), ("weight_decay", weight_decay)]
            }
            OptimizerSpec::Adam { beta1, beta2, eps, weight_decay }
            | OptimizerSpec::AdamW { beta1, beta2, eps, weight_decay } => vec![
                ("beta1", beta1),
                ("beta2", beta2),
                ("eps", eps),
                ("weight_decay", weight_decay),
            ],
            OptimizerSpec::Mean => vec![],
        }
    }

    /// Takes one option of the text form: `name=value`, `nesterov`, or momentum's bare number.
    fn set(&mut self, option: &str) -> Result<(), OptimizerError> {
        if let (OptimizerSpec::Momentum { nesterov, .. }, "nesterov") = (&mut *self, option) {
            *nesterov = true;
            return Ok(());
        }
        let bare = matches!(self, OptimizerSpec::Momentum { .. }) && number(option).is_some();
        let (name, value) = if bare {
            ("momentum", option)
        } else {
            option.split_once('=').unwrap_or((option, ""))
        };
        let optimizer = self.name();
        let unknown = || OptimizerError::UnknownOption { optimizer, option: option.to_owned() };
        let mut options = self.options_mut();
        let slot = options.iter_mut().find(|(known, _)| *known == name).ok_or_else(unknown)?;
        *slot.1 = number(value)
            .ok_or_else(|| OptimizerError::NotANumber { option: slot.0, text: value.to_owned() })?;
        Ok(())
    }
}

/// The scalars of one update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// How many updates the values will have seen with this one: 1 for the first.
    pub step: u64,
    /// The learning rate, with schedule and scaling in it.
    pub lr: f32,
    /// The factor from gradient sum to mean: 1 over the sum of weights, times the clip factor.
    pub scale: f32,
}

impl FromStr for OptimizerSpec {
    type Err = OptimizerError;

    fn from_str(text: &str) -> Result<Self, OptimizerError> {
        let (name, options) = text.split_once(':').unzip();
        let mut spec = match name.unwrap_or(text) {
            "sgd" => OptimizerSpec::SGD,
            "momentum" => OptimizerSpec::MOMENTUM,
            "adam" => OptimizerSpec::ADAM,
            "adamw" => OptimizerSpec::ADAMW,
            "mean" => OptimizerSpec::Mean,
            name => return Err(OptimizerError::Unknown { name: name.to_owned() }),
        };
        for option in options.into_iter().flat_map(|options: &str| options.split(',')) {
            spec.set(option)?;
        }
        spec.validate()?;
        Ok(spec)
    }
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let mut separator = ':';
        let mut option = |f: &mut fmt::Formatter<'_>, text: &str| {
            write!(f, "{separator}{text}")?;
            separator = ',';
            Ok(())
        };
        for (name, value) in self.options() {
            match name {
                // Debug writes the shortest text that reads back as the same float.
                "momentum" => option(f, &format!("{value:?}"))?,
                "weight_decay" if value == 0.0 && !matches!(self, OptimizerSpec::AdamW { .. }) => {}
                _ => option(f, &format!("{name}={value:?}"))?,
            }
        }
        if let OptimizerSpec::Momentum { nesterov: true, .. } = self {
            option(f, "nesterov")?;
        }
        Ok(())
    }
}

serde_as_text!(OptimizerSpec);

/// Why a text names no optimizer.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum OptimizerError {
    /// The optimizer is unknown.
    #[error("unknown optimizer `{name}`: expected sgd, momentum, adam, adamw or mean")]
    Unknown {
        /// The name given.
        name: String,
    },
    /// The optimizer has no option of this name.
    #[error("{optimizer} has no option `{option}`")]
    UnknownOption {
        /// The rule.
        optimizer: &'static str,
        /// The option given.
        option: String,
    },
    /// An option's value is not a finite number.
    #[error("{option} `{text}` is not a finite number")]
    NotANumber {
        /// The option.
        option: &'static str,
        /// The value given.
        text: String,
    },
    /// An option's value is outside its range.
    #[error("{option} {value} is out of range: expected {expected}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// The value given.
        value: f32,
        /// The range.
        expected: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, spec: OptimizerSpec, displayed: &str) {
        assert_eq!(text.parse(), Ok(spec), "{text}");
        assert_eq!(spec.to_string(), displayed);
        assert_eq!(displayed.parse(), Ok(spec), "{displayed}");
    }

    #[test]
    fn texts_read_as_stated() {
        use OptimizerSpec::{Adam, AdamW, Mean, Momentum, Sgd};
        check("sgd", OptimizerSpec::SGD, "sgd");
        check("sgd:weight_decay=1e-4", Sgd { weight_decay: 1e-4 }, "sgd:weight_decay=0.0001");
        check("momentum", OptimizerSpec::MOMENTUM, "momentum:0.9");
        let plain = Momentum { momentum: 0.95, nesterov: false, weight_decay: 0.0 };
        check("momentum:0.95", plain, "momentum:0.95");
        check("momentum:momentum=0.95", plain, "momentum:0.95");
        check(
            "momentum:nesterov,weight_decay=5e-4",
            Momentum { momentum: 0.9, nesterov: true, weight_decay: 5e-4 },
            "momentum:0.9,weight_decay=0.0005,nesterov",
        );
        check("adam", OptimizerSpec::ADAM, "adam:beta1=0.9,beta2=0.999,eps=1e-8");
        check(
            "adam:beta1=0.8,weight_decay=1e-3",
            Adam { beta1: 0.8, beta2: 0.999, eps: 1e-8, weight_decay: 1e-3 },
            "adam:beta1=0.8,beta2=0.999,eps=1e-8,weight_decay=0.001",
        );
        check(
            "adamw",
            OptimizerSpec::ADAMW,
            "adamw:beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01",
        );
        check(
            "adamw:beta2=0.95,weight_decay=0",
            AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 },
            "adamw:beta1=0.9,beta2=0.95,eps=1e-8,weight_decay=0.0",
        );
        check("mean", Mean, "mean");
    }

    #[track_caller]
    fn check_refused(text: &str, message: &str) {
        assert_eq!(text.parse::<OptimizerSpec>().unwrap_err().to_string(), message);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        check_refused("", "unknown optimizer ``: expected sgd, momentum, adam, adamw or mean");
        check_refused(
            "adagrad",
            "unknown optimizer `adagrad`: expected sgd, momentum, adam, adamw or mean",
        );
        check_refused("adam:amsgrad", "adam has no option `amsgrad`");
        check_refused("sgd:0.9", "sgd has no option `0.9`");
        check_refused("mean:", "mean has no option ``");
        check_refused("sgd:nesterov", "sgd has no option `nesterov`");
        check_refused("adamw:beta3=1", "adamw has no option `beta3=1`");
        check_refused("adamw:beta1", "beta1 `` is not a finite number");
        check_refused("adamw:eps=inf", "eps `inf` is not a finite number");
        check_refused("adamw:eps=0", "eps 0 is out of range: expected above 0");
        check_refused("momentum:1", "momentum 1 is out of range: expected at least 0 and below 1");
        check_refused(
            "sgd:weight_decay=-1",
            "weight_decay -1 is out of range: expected at least 0",
        );
    }

    fn any_spec() -> impl Strategy<Value = OptimizerSpec> {
        let (decay, share) = (0f32..1e3, 0f32..1.0);
        prop_oneof![
            decay.clone().prop_map(|weight_decay| OptimizerSpec::Sgd { weight_decay }),
            (share.clone(), any::<bool>(), decay.clone()).prop_map(
                |(momentum, nesterov, weight_decay)| OptimizerSpec::Momentum {
                    momentum,
                    nesterov,
                    weight_decay
                }
            ),
            (share.clone(), share, f32::MIN_POSITIVE..1.0, decay, any::<bool>()).prop_map(
                |(beta1, beta2, eps, weight_decay, decoupled)| match decoupled {
                    true => OptimizerSpec::AdamW { beta1, beta2, eps, weight_decay },
                    false => OptimizerSpec::Adam { beta1, beta2, eps, weight_decay },
                }
            ),
            Just(OptimizerSpec::Mean),
        ]
    }

    proptest! {
        #[test]
        fn text_round_trips(spec in any_spec()) {
            prop_assert_eq!(spec.to_string().parse(), Ok(spec));
            let json = serde_json::to_string(&spec).unwrap();
            prop_assert_eq!(serde_json::from_str::<OptimizerSpec>(&json).unwrap(), spec);
        }

        #[test]
        fn parsing_never_panics(text in "(sgd|momentum|adam|adamw|nesterov|eps|[-+:=,.0-9a-z])*") {
            let _ = text.parse::<OptimizerSpec>();
        }
    }

    #[test]
    #[should_panic(expected = "0 slots for an optimizer with")]
    fn missing_slots_are_refused() {
        let update = Update { step: 1, lr: 0.1, scale: 1.0 };
        OptimizerSpec::ADAMW.apply(update, &[0.0], &mut [0.0], &mut []);
    }
}
