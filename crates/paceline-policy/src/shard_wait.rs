//! Waiting for shards: the policies behind [`Enough`].

use paceline_core::{Enough, Shards, WaitRule};

use crate::{Cutoff, PolicySpec, Rule};

/// Waits for the updates of shards with these numbers of blocks: while the wait pays, until
/// [`Enough::least`] blocks are fresh in any case, and always for a shard that has missed `most_stale`
/// updates. A share alone never leaves out a shard that is late by a hair.
pub fn wait_for_updates(enough: Enough, blocks: &[u32], most_stale: u64) -> Shards {
    let policy = match enough {
        Enough::All => PolicySpec::Full,
        Enough::Share(_) | Enough::Auto => PolicySpec::Filter(Rule::Renewal),
    };
    Shards::new(blocks, policy.build(), enough.least(blocks), most_stale)
}

/// Waits for the answers over one worker's connections to these shards, where each answer has its own
/// request: for the first shards that are enough, or while the wait pays.
pub fn wait_for_answers(enough: Enough, blocks: &[u32], most_stale: u64) -> Shards {
    let policy = match enough {
        Enough::All => PolicySpec::Full,
        Enough::Share(_) => PolicySpec::Static(Cutoff::Count(1)),
        Enough::Auto => PolicySpec::Filter(Rule::Renewal),
    };
    Shards::asked_anew(blocks, policy.build(), enough.least(blocks), most_stale)
}

/// A factory of [`wait_for_answers`] per worker or contribution; `None` if all shards are waited for.
pub fn wait_rule(enough: Enough, blocks: &[u32], most_stale: u64) -> Option<WaitRule> {
    let blocks = blocks.to_vec();
    let rule = move || wait_for_answers(enough, &blocks, most_stale);
    (enough != Enough::All).then(|| Box::new(rule) as WaitRule)
}
