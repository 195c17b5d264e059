//! From a closed round to a published version: sums, one plan, updates everywhere.

use std::collections::BTreeSet;

use paceline_core::{
    BlockClose, Event, EventKind, Round, ShardCounts, ShardId, ShardWork, Time, Version, WorkerId,
};
use paceline_params::{Clip, ParamHash};
use paceline_wire::message::{Apply, ToShard, ToWorker};

use super::Run;
use crate::update::{Plan, gradient_norm, weight};

/// A round between its close and the publication of its update.
pub(super) struct Updating {
    round: Round,
    closes: Vec<BlockClose>,
    loss: f64,
    norms: Vec<f64>,
    /// The shards that it has, and of these those whose sums, and whose update, are still to come.
    of: BTreeSet<ShardId>,
    unsummed: usize,
    unapplied: usize,
    plan: Option<Plan>,
    hash: Option<ParamHash>,
    /// When the shards were told.
    ordered: Time,
    shards: Vec<ShardWork>,
}

/// Who is in the sums of these blocks.
fn members(close: &BlockClose) -> impl Iterator<Item = WorkerId> + '_ {
    close.members.iter().map(|&(worker, _)| worker)
}

impl Updating {
    fn version(&self) -> Version {
        self.round.base().next()
    }
}

impl Run {
    /// Membership is fixed: everyone is told, and the shards complete their sums. Where no clipping
    /// makes the update wait for their norms, they apply it in the same pass.
    pub(super) fn close(&mut self, round: Round, closes: &[BlockClose]) {
        self.tell_members(round, closes);
        let of = self.core.shards().fresh().clone();
        let mut update = Updating {
            round,
            loss: self.progress.open_loss / weight(closes),
            norms: vec![0.0; closes.len()],
            closes: closes.to_vec(),
            unsummed: of.len(),
            unapplied: of.len(),
            of,
            plan: None,
            hash: None,
            ordered: self.now(),
            shards: vec![ShardWork::default(); self.shards.len()],
        };
        // Every contribution was computed from old values of the shards that are left out.
        let all: BTreeSet<WorkerId> = closes.iter().flat_map(members).collect();
        let stale = &mut self.progress.open_stale;
        for ShardId(shard) in self.core.shards().left_out() {
            stale[shard as usize] = all.len() as u64;
        }
        for (shard, work) in (0..).zip(&mut update.shards) {
            let blocks = self.layout.shard_blocks(shard);
            let here = closes.iter().filter(|close| close.blocks.contains(blocks.start));
            let here = here.map(|close| close.members.len()).sum::<usize>();
            let here = if update.of.contains(&ShardId(shard)) { here } else { 0 };
            let blocks = blocks.len() as u64;
            work.counts.blocks_stale = stale[shard as usize] * blocks;
            work.counts.blocks_missed = all.len().saturating_sub(here) as u64 * blocks;
            work.parts = self.progress.open_parts[shard as usize];
        }
        for ShardId(shard) in &update.of {
            self.versions[*shard as usize] = update.version();
            self.told[*shard as usize] = update.ordered;
        }
        self.update = Some(update);
        let apply = (self.config.update.clip == Clip::None).then(|| self.plan()).flatten();
        for shard in self.core.shards().fresh() {
            // Of its own part alone: the whole could be longer than any frame.
            let blocks = self.layout.shard_blocks(shard.0);
            let closes = closes.iter().map(|close| close.within(blocks.clone())).collect();
            self.shards.send_to([shard], &ToShard::Close { closes, apply: apply.clone() });
        }
    }

    /// A round opens: shards that come back to it skip what they have missed.
    pub(super) fn bring_up_to_date(&mut self, base: Version) {
        let skip = ToShard::Skip { version: base };
        for shard in self.core.shards().fresh() {
            let version = &mut self.versions[shard.0 as usize];
            if std::mem::replace(version, base) != base {
                self.shards.send_to([shard], &skip);
            }
        }
    }

    fn tell_members(&self, round: Round, closes: &[BlockClose]) {
        let mut told = Vec::new();
        for WorkerId(worker) in closes.iter().flat_map(members) {
            let byte = worker as usize / 8;
            told.resize(told.len().max(byte + 1), 0);
            told[byte] |= 1 << (worker % 8);
        }
        let accepted = told.iter().map(|byte: &u8| byte.count_ones()).sum();
        let weight = weight(closes);
        let told = ToWorker::Closed { base: round.base(), accepted, weight, members: told };
        self.workers.send_all(self.workers.everyone(), &told);
    }

    /// Settles how the open update is made.
    fn plan(&mut self) -> Option<Apply> {
        let noise = self.core.noise_scale();
        let update = self.update.as_mut()?;
        let norm = gradient_norm(&update.closes, &update.norms);
        let plan = Plan::new(&self.config.update, update.round.0, &update.closes, norm, noise);
        self.step += 1;
        let apply = Apply {
            version: update.round.base().next(),
            step: self.step,
            learning_rate: plan.learning_rate,
            scales: plan.scales.clone(),
            hash: self.config.deterministic,
        };
        update.plan = Some(plan);
        Some(apply)
    }

    /// A shard has its sums; when all have, the update is planned (if it was not before) and
    /// applied everywhere.
    pub(super) fn summed(&mut self, shard: ShardId, norms: &[f64]) {
        let Some(update) = self.update_of(shard) else { return };
        if update.norms.len() != norms.len() || update.unsummed == 0 {
            return self.fail(format!("{shard} reported sums that nobody asked for"));
        }
        update.norms.iter_mut().zip(norms).for_each(|(total, norm)| *total += norm);
        update.unsummed -= 1;
        if update.unsummed == 0 && update.plan.is_none() {
            let of = update.of.clone();
            if let Some(apply) = self.plan() {
                self.shards.send_to(&of, &ToShard::Apply(apply));
            }
        }
    }

    /// A shard has applied an update: the last one, or one that the run did not wait for.
    pub(super) fn applied(&mut self, shard: ShardId, hash: Option<ParamHash>, counts: ShardCounts) {
        let now = self.now();
        if let Err(error) = self.core.handle_applied(shard, now) {
            return self.fail(format!("{shard} applied an update that nobody asked for: {error}"));
        }
        let place = shard.0 as usize;
        let wait = now.since(self.told[place]);
        let Some(update) = self.update_of(shard) else {
            // It was published without this one, whose part in it is told with the next.
            self.belated[place] += ShardWork { wait, counts, ..ShardWork::default() };
            return;
        };
        update.hash = match (update.hash, hash) {
            (Some(so_far), Some(hash)) => Some(so_far.combine(hash)),
            (so_far, hash) => so_far.or(hash),
        };
        let work = &mut update.shards[place];
        let ShardCounts { blocks_stale, blocks_missed, .. } = work.counts;
        let counts = ShardCounts { blocks_stale, blocks_missed, ..counts };
        *work = ShardWork { wait, counts, ..*work };
        update.unapplied = update.unapplied.saturating_sub(1);
    }

    /// The update that is under way, if `shard` is at it; it may be at an older one.
    fn update_of(&mut self, shard: ShardId) -> Option<&mut Updating> {
        let at = self.versions.get(shard.0 as usize)?;
        self.update.as_mut().filter(|update| update.version() == *at)
    }

    /// Publishes the update that is under way, once enough shards have applied it.
    pub(super) fn publish(&mut self, now: Time) {
        if self.update.as_ref().is_some_and(|update| update.plan.is_some())
            && self.core.settle(now)
            && let Some(update) = self.update.take()
        {
            self.published(update, now);
        }
    }

    fn published(&mut self, update: Updating, now: Time) {
        let everywhere = update.of.len() == self.shards.len()
            && update.unapplied == 0
            && update.closes.len() == 1;
        let Updating { round, closes, loss, norms, plan, hash, mut shards, .. } = update;
        for (work, belated) in shards.iter_mut().zip(&mut self.belated) {
            *work += std::mem::take(belated);
        }
        let plan = plan.expect("an update is planned before it is applied");
        let version = round.base().next();
        self.progress.version = version;
        self.progress.updated = Some(now);
        self.progress.loss = Some(self.progress.loss.map_or(loss, |old| 0.9 * old + 0.1 * loss));
        self.progress.param_hash = hash.map(|hash| (version, hash)).or(self.progress.param_hash);
        self.progress.shards.resize(shards.len(), ShardWork::default());
        self.progress.shards.iter_mut().zip(&shards).for_each(|(total, &work)| *total += work);
        let norm = gradient_norm(&closes, &norms);
        if everywhere {
            self.core.handle_square((norm * weight(&closes)).powi(2));
        }
        let kind = EventKind::Updated {
            round,
            version,
            learning_rate: plan.learning_rate,
            gradient_norm: norm,
            noise_scale: self.core.noise_scale(),
            loss,
            weight: weight(&closes),
            param_hash: hash.map(|hash| hash.to_string()),
            shards,
        };
        self.record(Event { at: now, kind });
        self.snapshot_if_due(version);
    }
}
