//! From a closed round to a published version: sums, one plan, updates everywhere.

use paceline_core::{BlockClose, EventKind, Round, WorkerId};
use paceline_params::ParamHash;
use paceline_wire::message::{ToShard, ToWorker};

use super::Run;
use crate::update::PlannedUpdate;

/// A round between its close and the publication of its update.
pub(super) struct Updating {
    round: Round,
    closes: Vec<BlockClose>,
    loss: f64,
    norms: Vec<f64>,
    waiting: usize,
    planned: Option<PlannedUpdate>,
    hash: Option<ParamHash>,
}

impl Run {
    /// Membership is fixed: everyone is told, and the shards complete their sums.
    pub(super) fn close(&mut self, round: Round, closes: &[BlockClose]) {
        let mut members = Vec::new();
        for &(WorkerId(worker), _) in closes.iter().flat_map(|close| &close.members) {
            let byte = worker as usize / 8;
            members.resize(members.len().max(byte + 1), 0);
            members[byte] |= 1 << (worker % 8);
        }
        let weight = closes.iter().map(BlockClose::weight).fold(0.0, f64::max);
        let accepted = members.iter().map(|byte: &u8| byte.count_ones()).sum();
        let told = ToWorker::Closed { base: round.base(), accepted, weight, members };
        self.workers.send_all(self.workers.everyone(), &told);
        self.shards.send_all(&ToShard::Close { closes: closes.to_vec() });
        self.update = Some(Updating {
            round,
            loss: self.progress.open_loss / weight,
            norms: vec![0.0; closes.len()],
            closes: closes.to_vec(),
            waiting: self.shards.len(),
            planned: None,
            hash: None,
        });
    }

    /// A shard has its sums; when all have, the update is planned and applied everywhere.
    pub(super) fn summed(&mut self, norms: &[f64]) {
        let Some(update) = self.update.as_mut().filter(|u| u.norms.len() == norms.len()) else {
            return self.fail("a shard reported sums that nobody asked for".to_owned());
        };
        update.norms.iter_mut().zip(norms).for_each(|(total, norm)| *total += norm);
        update.waiting -= 1;
        if update.waiting > 0 {
            return;
        }
        let planned =
            PlannedUpdate::new(&self.config.update, update.round.0, &update.closes, &update.norms);
        self.step += 1;
        let apply = ToShard::Apply {
            version: update.round.base().next(),
            step: self.step,
            learning_rate: planned.learning_rate,
            scales: planned.scales.clone(),
            hash: self.config.deterministic,
        };
        update.waiting = self.shards.len();
        update.planned = Some(planned);
        self.shards.send_all(&apply);
    }

    /// A shard has applied the update; when all have, the version is published.
    pub(super) fn applied(&mut self, hash: Option<ParamHash>) {
        let Some(update) = self.update.as_mut().filter(|u| u.planned.is_some()) else {
            return self.fail("a shard applied an update that nobody asked for".to_owned());
        };
        update.hash = match (update.hash, hash) {
            (Some(so_far), Some(hash)) => Some(so_far.combine(hash)),
            (so_far, hash) => so_far.or(hash),
        };
        update.waiting -= 1;
        if update.waiting == 0
            && let Some(update) = self.update.take()
        {
            self.published(update);
        }
    }

    fn published(&mut self, update: Updating) {
        let Updating { round, closes, loss, planned, hash, .. } = update;
        let planned = planned.expect("an update is planned before it is applied");
        let version = round.base().next();
        self.progress.version = version;
        self.progress.updated = Some(self.now());
        self.progress.loss = Some(self.progress.loss.map_or(loss, |old| 0.9 * old + 0.1 * loss));
        self.progress.param_hash = hash.map(|hash| (version, hash)).or(self.progress.param_hash);
        self.emit(EventKind::Updated {
            round,
            version,
            learning_rate: planned.learning_rate,
            gradient_norm: planned.gradient_norm,
            loss,
            weight: closes.iter().map(BlockClose::weight).fold(0.0, f64::max),
            param_hash: hash.map(|hash| hash.to_string()),
        });
        self.core.handle_published();
        self.snapshot_if_due(version);
    }
}
