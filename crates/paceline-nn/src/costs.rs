//! Relative costs of samples: how long each takes to compute.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::{DataError, rng::RandomStream};

/// Where the costs of the training samples come from; written as a file's path or
/// `lognormal:SIGMA`.
#[derive(Clone, Debug, PartialEq)]
pub enum CostSpec {
    /// A text file with one number per line and sample, for example its length.
    File(PathBuf),
    /// Drawn by seed, with this deviation of the logarithm.
    Lognormal(f64),
}

/// The stream of random numbers that costs are drawn from.
const COSTS: u64 = 0x636f_7374;

impl CostSpec {
    /// The cost of every one of `samples` samples.
    ///
    /// # Errors
    ///
    /// Fails if a file is unreadable, or does not have a positive number for every sample.
    pub fn load(&self, samples: usize, seed: u64) -> Result<Arc<[f32]>, DataError> {
        match self {
            Self::Lognormal(sigma) => {
                let mut dice = RandomStream::new(seed, &[COSTS]);
                // The sum of twelve uniform draws is close enough to a normal one.
                let mut normal = || (0..12).map(|_| dice.unit()).sum::<f32>() - 6.0;
                Ok((0..samples).map(|_| (*sigma as f32 * normal()).exp()).collect())
            }
            Self::File(path) => {
                let read = |error| DataError::Read { path: path.clone(), offset: 0, error };
                let text = fs::read_to_string(path).map_err(read)?;
                let wrong = |line, found: &str| DataError::Cost {
                    path: path.clone(),
                    line,
                    found: found.to_owned(),
                };
                let cost = |(i, line): (usize, &str)| {
                    let cost = line.trim().parse::<f32>().ok();
                    let cost = cost.filter(|cost| cost.is_finite() && *cost > 0.0);
                    cost.ok_or_else(|| wrong(i + 1, line))
                };
                let costs: Arc<[f32]> =
                    text.lines().enumerate().map(cost).collect::<Result<_, _>>()?;
                match costs.len() == samples {
                    true => Ok(costs),
                    false => {
                        Err(DataError::Costs { path: path.clone(), found: costs.len(), samples })
                    }
                }
            }
        }
    }
}

impl FromStr for CostSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("lognormal:") {
            Some(sigma) => match sigma.parse() {
                Ok(sigma) if (0.0..=3.0).contains(&sigma) => Ok(Self::Lognormal(sigma)),
                _ => Err(format!("`{text}`: expected a deviation from 0 to 3 after `lognormal:`")),
            },
            None if text.is_empty() => Err("expected a file's name, or lognormal:SIGMA".to_owned()),
            None => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

impl fmt::Display for CostSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Lognormal(sigma) => write!(f, "lognormal:{sigma}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_read_from_lines_or_drawn_and_errors_name_the_fault() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lengths.txt");
        let load = |text: &str, samples| {
            fs::write(&path, text).unwrap();
            let spec: CostSpec = path.to_str().unwrap().parse().unwrap();
            spec.load(samples, 1).map_err(|error| error.to_string())
        };
        assert_eq!(*load("3\n1.5\n 20\n", 3).unwrap(), [3.0, 1.5, 20.0]);
        assert!(load("3\n1.5\n", 3).unwrap_err().contains("2 costs for 3 samples"));
        let error = load("3\n-1\n2\n", 3).unwrap_err();
        assert!(error.contains("lengths.txt: line 2") && error.contains("-1"), "{error}");
        let drawn: CostSpec = "lognormal:0.5".parse().unwrap();
        assert_eq!(drawn.load(100, 7).unwrap(), drawn.load(100, 7).unwrap());
        assert_ne!(drawn.load(100, 7).unwrap(), drawn.load(100, 8).unwrap());
        assert!("lognormal:x".parse::<CostSpec>().unwrap_err().contains("deviation"));
    }
}
