//! The parts of `auto`, each run alone.

use paceline_policy::{Cutoff, PolicySpec};

/// Shares of the workers that fixed counts wait for, besides all and all but one.
const SHARES: [f64; 12] = [0.98, 0.95, 0.9, 0.85, 0.75, 0.65, 0.5, 0.35, 0.2, 0.1, 0.05, 0.02];

/// The parts for a cluster of `n` workers, with their names.
pub(in crate::simulate) fn parts(n: usize) -> Vec<(String, PolicySpec)> {
    let but_one = Cutoff::Count(n.saturating_sub(1).max(1) as u32);
    let mut parts = vec![
        ("full".to_owned(), PolicySpec::Full),
        ("static:n-1".to_owned(), PolicySpec::Static(but_one)),
    ];
    let counts = SHARES.map(|share| PolicySpec::Static(Cutoff::Fraction(share)));
    let learned = ["empirical", "bdsgd", "filter"].map(|name| name.parse().expect("a policy"));
    parts.extend(counts.into_iter().chain(learned).map(|policy| (policy.to_string(), policy)));
    parts
}
