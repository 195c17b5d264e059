//! From a closed round to a published version: sums, one plan, updates everywhere.

use paceline_core::{BlockClose, EventKind, Round, ShardCounts, ShardWork, Time, WorkerId};
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
    /// Shards whose sums, and whose update, are still to come.
    unsummed: usize,
    unapplied: usize,
    plan: Option<Plan>,
    hash: Option<ParamHash>,
    /// When the shards were told.
    ordered: Time,
    shards: Vec<ShardWork>,
}

impl Run {
    /// Membership is fixed: everyone is told, and the shards complete their sums. Where no clipping
    /// makes the update wait for their norms, they apply it in the same pass.
    pub(super) fn close(&mut self, round: Round, closes: &[BlockClose]) {
        self.tell_members(round, closes);
        self.update = Some(Updating {
            round,
            loss: self.progress.open_loss / weight(closes),
            norms: vec![0.0; closes.len()],
            closes: closes.to_vec(),
            unsummed: self.shards.len(),
            unapplied: self.shards.len(),
            plan: None,
            hash: None,
            ordered: self.now(),
            shards: vec![ShardWork::default(); self.shards.len()],
        });
        let apply = (self.config.update.clip == Clip::None).then(|| self.plan()).flatten();
        self.shards.send_all(&ToShard::Close { closes: closes.to_vec(), apply });
    }

    fn tell_members(&self, round: Round, closes: &[BlockClose]) {
        let mut members = Vec::new();
        for &(WorkerId(worker), _) in closes.iter().flat_map(|close| &close.members) {
            let byte = worker as usize / 8;
            members.resize(members.len().max(byte + 1), 0);
            members[byte] |= 1 << (worker % 8);
        }
        let accepted = members.iter().map(|byte: &u8| byte.count_ones()).sum();
        let weight = weight(closes);
        let told = ToWorker::Closed { base: round.base(), accepted, weight, members };
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
    pub(super) fn summed(&mut self, norms: &[f64]) {
        let expected = |u: &&mut Updating| u.norms.len() == norms.len() && u.unsummed > 0;
        let Some(update) = self.update.as_mut().filter(expected) else {
            return self.fail("a shard reported sums that nobody asked for".to_owned());
        };
        update.norms.iter_mut().zip(norms).for_each(|(total, norm)| *total += norm);
        update.unsummed -= 1;
        if update.unsummed == 0
            && update.plan.is_none()
            && let Some(apply) = self.plan()
        {
            self.shards.send_all(&ToShard::Apply(apply));
        }
    }

    /// A shard has applied the update; when all have, the version is published.
    pub(super) fn applied(&mut self, shard: u32, hash: Option<ParamHash>, counts: ShardCounts) {
        let now = self.now();
        let Some(update) = self.update.as_mut().filter(|u| u.plan.is_some()) else {
            return self.fail("a shard applied an update that nobody asked for".to_owned());
        };
        update.hash = match (update.hash, hash) {
            (Some(so_far), Some(hash)) => Some(so_far.combine(hash)),
            (so_far, hash) => so_far.or(hash),
        };
        update.shards[shard as usize] = ShardWork { wait: now - update.ordered, counts };
        update.unapplied -= 1;
        if update.unapplied == 0
            && let Some(update) = self.update.take()
        {
            self.published(update);
        }
    }

    fn published(&mut self, update: Updating) {
        let Updating { round, closes, loss, norms, plan, hash, shards, .. } = update;
        let plan = plan.expect("an update is planned before it is applied");
        let version = round.base().next();
        self.progress.version = version;
        self.progress.updated = Some(self.now());
        self.progress.loss = Some(self.progress.loss.map_or(loss, |old| 0.9 * old + 0.1 * loss));
        self.progress.param_hash = hash.map(|hash| (version, hash)).or(self.progress.param_hash);
        self.progress.shards.resize(shards.len(), ShardWork::default());
        self.progress.shards.iter_mut().zip(&shards).for_each(|(total, &work)| *total += work);
        let norm = gradient_norm(&closes, &norms);
        self.core.handle_published((norm * weight(&closes)).powi(2));
        self.emit(EventKind::Updated {
            round,
            version,
            learning_rate: plan.learning_rate,
            gradient_norm: norm,
            noise_scale: self.core.noise_scale(),
            loss,
            weight: weight(&closes),
            param_hash: hash.map(|hash| hash.to_string()),
            shards,
        });
        self.snapshot_if_due(version);
    }
}
