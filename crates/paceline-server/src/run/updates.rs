//! The update of a closed round: sums on the shards, one plan, and the publication of the new version.

use std::{collections::BTreeSet, time::Duration};

use paceline_core::{
    BlockClose, Driver, Event, EventKind, Round, ShardCounts, ShardId, ShardWork, Time, Version,
    WorkerId,
};
use paceline_params::{Clip, ParamHash, SumOfBlocks, UpdatePlan, gradient_norm, update_weight};
use paceline_wire::message::{Apply, ToShard, ToWorker};

use super::{Run, rates::Rates};

/// A round between its close and the publication of its update.
pub(super) struct Updating {
    round: Round,
    closes: Vec<BlockClose>,
    loss: Option<f64>,
    /// The learning rates that its workers gave, if they did.
    rates: Option<Vec<f32>>,
    /// The sum of each close, over the reports of the shards so far.
    sums: Vec<SumOfBlocks>,
    /// The shards of the round; below, how many of them have not reported their sums and their update.
    of: BTreeSet<ShardId>,
    unsummed: usize,
    unapplied: usize,
    plan: Option<UpdatePlan>,
    hash: Option<ParamHash>,
    /// When the shards were told to close.
    ordered: Time,
    shards: Vec<ShardWork>,
}

/// The updates of a run: the one under way, and the totals of earlier ones.
pub(super) struct Updates {
    pub(super) current: Option<Updating>,
    pub(super) open: RoundTally,
    pub(super) rates: Rates,
    /// The version that each shard is making, or has made last.
    versions: Vec<Version>,
    /// When each shard was last told to close a round.
    told: Vec<Time>,
    /// Work of shards on updates that were published without them, to be reported with the next update.
    belated: Vec<ShardWork>,
    /// Updates so far, over all processes of the run.
    pub(super) step: u64,
    /// The last published version.
    pub(super) version: Version,
    /// When the first round opened.
    pub(super) began: Option<Time>,
    pub(super) published_at: Option<Time>,
    /// Mean training loss of the last rounds (moving average).
    pub(super) loss: Option<f64>,
    /// Each shard's work in all rounds of this process.
    pub(super) shard_work: Vec<ShardWork>,
}

/// Figures of the open round.
pub(super) struct RoundTally {
    /// Sum of the loss over the samples accepted; `None` if a worker did not report it.
    pub(super) loss: Option<f64>,
    /// Workers that computed from stale values, by shard.
    pub(super) stale: Vec<u64>,
    /// The longest time that a part of a gradient took to reach each shard.
    pub(super) parts: Vec<Duration>,
    /// When the round was cut, from its opening on, and why.
    pub(super) cut: Option<(Duration, String)>,
}

impl RoundTally {
    fn new(shards: usize) -> RoundTally {
        RoundTally {
            loss: Some(0.0),
            stale: vec![0; shards],
            parts: vec![Duration::ZERO; shards],
            cut: None,
        }
    }
}

impl Updates {
    pub(super) fn new(version: Version, step: u64, shards: usize) -> Updates {
        Updates {
            current: None,
            open: RoundTally::new(shards),
            rates: Rates::default(),
            versions: vec![version; shards],
            told: vec![Time::ZERO; shards],
            belated: vec![ShardWork::default(); shards],
            step,
            version,
            began: None,
            published_at: None,
            loss: None,
            shard_work: Vec::new(),
        }
    }

    /// A round opens.
    pub(super) fn open(&mut self, at: Time) {
        self.began.get_or_insert(at);
        self.open = RoundTally::new(self.versions.len());
    }
}

/// The members of the sums of these blocks.
fn members(close: &BlockClose) -> impl Iterator<Item = WorkerId> + '_ {
    close.members.iter().map(|&(worker, _)| worker)
}

impl Updating {
    fn version(&self) -> Version {
        self.round.base().next()
    }
}

impl Run {
    /// Membership is fixed: all workers are told, and the shards complete their sums. Unless clipping makes
    /// the update wait for their norms, they apply it in the same pass.
    pub(super) fn begin_update(&mut self, round: Round, closes: &[BlockClose]) {
        let sum = |close: &BlockClose| SumOfBlocks { weight: close.weight(), square: 0.0 };
        let sums: Vec<SumOfBlocks> = closes.iter().map(sum).collect();
        self.tell_members(round, closes, update_weight(&sums));
        let of = self.core.shards().fresh().clone();
        let mut update = Updating {
            round,
            loss: self.updates.open.loss.map(|loss| loss / update_weight(&sums)),
            rates: self
                .updates
                .rates
                .close(|worker, id| self.core.contribution(worker, id).is_some()),
            sums,
            closes: closes.to_vec(),
            unsummed: of.len(),
            unapplied: of.len(),
            of,
            plan: None,
            hash: None,
            ordered: self.now(),
            shards: vec![ShardWork::default(); self.shards.len()],
        };
        // Every contribution was computed from stale values of the shards that are left out.
        let all: BTreeSet<WorkerId> = closes.iter().flat_map(members).collect();
        let stale = &mut self.updates.open.stale;
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
            work.parts = self.updates.open.parts[shard as usize];
        }
        for ShardId(shard) in &update.of {
            self.updates.versions[*shard as usize] = update.version();
            self.updates.told[*shard as usize] = update.ordered;
        }
        self.updates.current = Some(update);
        let apply = (self.config.update.clip == Clip::None).then(|| self.plan()).flatten();
        for shard in self.core.shards().fresh() {
            // Only the shard's own part: the whole close could exceed the longest frame.
            let blocks = self.layout.shard_blocks(shard.0);
            let closes = closes.iter().map(|close| close.within(blocks.clone())).collect();
            self.shards.send_to([shard], &ToShard::Close { closes, apply: apply.clone() });
        }
    }

    /// A round opens: shards that take part again skip the updates that they missed.
    pub(super) fn bring_up_to_date(&mut self, base: Version) {
        let skip = ToShard::Skip { version: base };
        for shard in self.core.shards().fresh() {
            let version = &mut self.updates.versions[shard.0 as usize];
            if std::mem::replace(version, base) != base {
                self.shards.send_to([shard], &skip);
            }
        }
    }

    fn tell_members(&self, round: Round, closes: &[BlockClose], weight: f64) {
        let mut told = Vec::new();
        for WorkerId(worker) in closes.iter().flat_map(members) {
            let byte = worker as usize / 8;
            told.resize(told.len().max(byte + 1), 0);
            told[byte] |= 1 << (worker % 8);
        }
        let accepted = told.iter().map(|byte: &u8| byte.count_ones()).sum();
        let (cut_after, reason) = self.updates.open.cut.clone().unwrap_or_default();
        let told = ToWorker::Closed {
            base: round.base(),
            accepted,
            weight,
            members: told,
            cut_after,
            reason,
            epochs: self.core.ledger().epochs(),
        };
        self.members.workers.send_all(self.members.workers.everyone(), &told);
    }

    /// Plans the update under way.
    fn plan(&mut self) -> Option<Apply> {
        let noise = self.core.noise_scale();
        let update = self.updates.current.as_mut()?;
        let (config, round, given) = (&self.config.update, update.round.0, update.rates.as_deref());
        let plan = UpdatePlan::new(config, round, &update.sums, noise, given);
        self.updates.step += 1;
        let apply = Apply {
            version: update.round.base().next(),
            step: self.updates.step,
            learning_rates: plan.learning_rates.clone(),
            scales: plan.scales.clone(),
            hash: self.config.deterministic,
        };
        update.plan = Some(plan);
        Some(apply)
    }

    /// A shard has completed its sums. Once all have, the update is planned (if it was not before) and
    /// applied everywhere.
    pub(super) fn summed(&mut self, shard: ShardId, norms: &[f64]) {
        let Some(update) = self.update_of(shard) else { return };
        if update.sums.len() != norms.len() || update.unsummed == 0 {
            return self.fail(format!("{shard} reported sums that nobody asked for"));
        }
        update.sums.iter_mut().zip(norms).for_each(|(sum, norm)| sum.square += norm);
        update.unsummed -= 1;
        if update.unsummed == 0 && update.plan.is_none() {
            let of = update.of.clone();
            if let Some(apply) = self.plan() {
                self.shards.send_to(&of, &ToShard::Apply(apply));
            }
        }
    }

    /// A shard has applied an update: the current one, or one that the run did not wait for.
    pub(super) fn applied(&mut self, shard: ShardId, hash: Option<ParamHash>, counts: ShardCounts) {
        let now = self.now();
        if let Err(error) = self.core.handle_applied(shard, now) {
            return self.fail(format!("{shard} applied an update that nobody asked for: {error}"));
        }
        let place = shard.0 as usize;
        let wait = now.since(self.updates.told[place]);
        let Some(update) = self.update_of(shard) else {
            // The update was published without this shard, whose work is reported with the next one.
            self.updates.belated[place] += ShardWork { wait, counts, ..ShardWork::default() };
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

    /// The update under way, if `shard` works on it and not on an older one.
    fn update_of(&mut self, shard: ShardId) -> Option<&mut Updating> {
        let at = self.updates.versions.get(shard.0 as usize)?;
        self.updates.current.as_mut().filter(|update| update.version() == *at)
    }

    /// Publishes the update that is under way, once enough shards have applied it.
    pub(super) fn publish(&mut self, now: Time) {
        if self.updates.current.as_ref().is_some_and(|update| update.plan.is_some())
            && self.core.settle(now)
            && let Some(update) = self.updates.current.take()
        {
            self.published(update, now);
        }
    }

    fn published(&mut self, update: Updating, now: Time) {
        let everywhere = update.of.len() == self.shards.len()
            && update.unapplied == 0
            && update.closes.len() == 1;
        let Updating { round, sums, loss, plan, hash, mut shards, .. } = update;
        for (work, belated) in shards.iter_mut().zip(&mut self.updates.belated) {
            *work += std::mem::take(belated);
        }
        let plan = plan.expect("an update is planned before it is applied");
        let version = round.base().next();
        self.updates.version = version;
        self.updates.published_at = Some(now);
        if let Some(loss) = loss {
            let old = self.updates.loss;
            self.updates.loss = Some(old.map_or(loss, |old| 0.9 * old + 0.1 * loss));
        }
        self.snapshots.param_hash = hash.map(|hash| (version, hash)).or(self.snapshots.param_hash);
        self.updates.shard_work.resize(shards.len(), ShardWork::default());
        self.updates.shard_work.iter_mut().zip(&shards).for_each(|(total, &work)| *total += work);
        let (norm, weight) = (gradient_norm(&sums), update_weight(&sums));
        if everywhere {
            self.core.handle_square((norm * weight).powi(2));
        }
        let kind = EventKind::Updated {
            round,
            version,
            learning_rate: plan.learning_rates[0],
            gradient_norm: norm,
            noise_scale: self.core.noise_scale(),
            loss,
            weight,
            param_hash: hash.map(|hash| hash.to_string()),
            shards,
        };
        self.record(Event { at: now, kind });
        self.pair_with_record();
        self.keep_moment();
        self.snapshot_if_due(version);
    }
}
