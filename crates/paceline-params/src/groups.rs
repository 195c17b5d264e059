//! The optimizers of a run, one for each parameter group.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::serde_as_text;
use crate::{OptimizerError, OptimizerSpec};

/// One optimizer for each parameter group, by the group's number ([`TensorSpec::group`]).
///
/// All groups have the same rule and differ in its options, so the state beside the values is the
/// same for all. As text: the groups' optimizers separated by semicolons, for instance
/// `adamw:weight_decay=0.1;adamw:weight_decay=0`.
///
/// [`TensorSpec::group`]: crate::TensorSpec::group
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerGroups(Vec<OptimizerSpec>);

impl OptimizerGroups {
    /// The optimizers of groups 0, 1, 2, ….
    pub fn new(groups: Vec<OptimizerSpec>) -> Result<Self, OptimizerGroupsError> {
        let Some((first, others)) = groups.split_first() else {
            return Err(OptimizerGroupsError::Empty);
        };
        match others.iter().find(|other| !other.is_same_rule(first)) {
            Some(&other) => Err(OptimizerGroupsError::Mixed { first: *first, other }),
            None => Ok(OptimizerGroups(groups)),
        }
    }

    /// The number of groups, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "there is always a group")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The optimizer of group `group`.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn of(&self, group: u32) -> &OptimizerSpec {
        &self.0[group as usize]
    }

    /// Whether the values of this group are parts of a gradient, so that they count in its norm. Where
    /// shards average, the gradient is group 0; values of further groups only travel with it.
    pub fn is_gradient(&self, group: u32) -> bool {
        group == 0 || *self.of(0) != OptimizerSpec::Mean
    }

    /// The vectors of state that every group's rule keeps; see [`OptimizerSpec::slot_names`].
    pub fn slot_names(&self) -> &'static [&'static str] {
        self.0[0].slot_names()
    }
}

impl From<OptimizerSpec> for OptimizerGroups {
    /// One group.
    fn from(spec: OptimizerSpec) -> Self {
        OptimizerGroups(vec![spec])
    }
}

impl FromStr for OptimizerGroups {
    type Err = OptimizerGroupsError;

    fn from_str(text: &str) -> Result<Self, OptimizerGroupsError> {
        let groups: Result<_, OptimizerError> = text.split(';').map(str::parse).collect();
        Self::new(groups?)
    }
}

impl fmt::Display for OptimizerGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (group, spec) in self.0.iter().enumerate() {
            let separator = if group == 0 { "" } else { ";" };
            write!(f, "{separator}{spec}")?;
        }
        Ok(())
    }
}

serde_as_text!(OptimizerGroups);

/// Why optimizers cannot be those of one run.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum OptimizerGroupsError {
    /// There is no group.
    #[error("a run has at least one parameter group")]
    Empty,
    /// The groups have different rules.
    #[error("parameter groups with `{first}` and `{other}`: all groups have the same optimizer")]
    Mixed {
        /// The optimizer of group 0.
        first: OptimizerSpec,
        /// Another one.
        other: OptimizerSpec,
    },
    /// A group's text names no optimizer.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_optimizer_is_one_group_and_its_text_stays() {
        let one: OptimizerGroups = "momentum:0.95".parse().unwrap();
        assert_eq!((one.len(), one.to_string().as_str()), (1, "momentum:0.95"));
        assert_eq!(one, OptimizerGroups::from(*one.of(0)));
    }

    #[test]
    fn groups_differ_in_options() {
        let text = "sgd;sgd:weight_decay=0.5";
        let groups: OptimizerGroups = text.parse().unwrap();
        assert_eq!(groups.of(1), &OptimizerSpec::Sgd { weight_decay: 0.5 });
        assert_eq!(groups.to_string(), text);
        let json = serde_json::to_string(&groups).unwrap();
        assert_eq!(serde_json::from_str::<OptimizerGroups>(&json).unwrap(), groups);
    }

    #[test]
    fn groups_with_different_rules_are_refused() {
        let refused = |text: &str| text.parse::<OptimizerGroups>().unwrap_err().to_string();
        assert_eq!(
            refused("sgd;momentum"),
            "parameter groups with `sgd` and `momentum:0.9`: all groups have the same optimizer"
        );
        assert_eq!(refused("sgd;"), "".parse::<OptimizerSpec>().unwrap_err().to_string());
        assert_eq!(OptimizerGroups::new(vec![]), Err(OptimizerGroupsError::Empty));
    }
}
