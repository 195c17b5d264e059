//! Carrying out the coordinator's decisions: one loop for the server and the simulators.

use crate::{
    BlockClose, Blocks, ContributionId, Coordinator, Event, EventKind, Portion, Round, RunTime,
    ShardId, Time, Version, Work, WorkerId,
};

/// A contribution that counts, as a driver must act on it.
#[derive(Debug, Clone, Copy)]
pub struct Accepted<'a> {
    /// The contribution.
    pub id: ContributionId,
    /// The worker it is from.
    pub worker: WorkerId,
    /// Samples behind it.
    pub weight: f64,
    /// Sum of the loss over them, if its worker knows it.
    pub loss: Option<f64>,
    /// The blocks that it is complete on.
    pub blocks: &'a Blocks,
    /// The share of its weight that counts.
    pub share: f64,
    /// When it was accepted.
    pub at: Time,
}

/// One shard's part of a contribution that counts.
#[derive(Debug, Clone, Copy)]
pub struct AcceptedPart {
    /// The contribution.
    pub id: ContributionId,
    /// The worker it is from.
    pub worker: WorkerId,
    /// The shard that holds the part.
    pub shard: ShardId,
    /// The share of its weight that counts.
    pub share: f64,
    /// When it was accepted.
    pub at: Time,
}

/// Carries out the decisions of a [`Coordinator`], over sockets or in simulated time.
pub trait Driver {
    /// The coordinator that it drives.
    fn coordinator(&mut self) -> &mut Coordinator;

    /// A round opens. Its work is given next.
    fn opened(&mut self, _round: Round, _at: Time) {}

    /// Workers are to compute gradients from `base`.
    fn give(&mut self, base: Version, work: &[Work]);

    /// The leases of a worker have changed to these ([`Coordinator::lease_ahead`]). The work that has become
    /// of a lease was given before.
    fn leases(&mut self, _worker: WorkerId, _leases: Vec<Portion>) {}

    /// A contribution counts: the shards that hold its blocks may fold it.
    fn accept(&mut self, accepted: &Accepted<'_>);

    /// Another shard's part of an accepted contribution has arrived and counts on that shard.
    fn accept_part(&mut self, _part: &AcceptedPart) {}

    /// A contribution will not be used: shards drop the parts that they hold of it.
    fn discard(&mut self, worker: WorkerId, id: ContributionId);

    /// Workers are to stop computing from `base`.
    fn stop(&mut self, base: Version, stragglers: &[WorkerId]);

    /// A round's membership is fixed: its update is to be made.
    fn close(
        &mut self,
        round: Round,
        closes: &[BlockClose],
        run_times: &[(WorkerId, RunTime)],
        at: Time,
    );

    /// Every event, before it is acted on.
    fn see(&mut self, _event: &Event) {}

    /// Every event, after it was acted on.
    fn record(&mut self, _event: Event) {}
}

/// Acts on all pending decisions of the coordinator. Returns whether there were any.
pub fn act(driver: &mut impl Driver) -> bool {
    let mut acted = false;
    while let Some(event) = driver.coordinator().poll_event() {
        acted = true;
        driver.see(&event);
        let at = event.at;
        match &event.kind {
            EventKind::RoundStarted { round, work } => {
                driver.opened(*round, at);
                driver.give(round.base(), work);
            }
            EventKind::Enlisted { round, work } => {
                driver.give(round.base(), std::slice::from_ref(work));
            }
            EventKind::Arrived { id, worker, weight, loss, blocks, share, .. } => {
                let (id, worker) = (*id, *worker);
                let (weight, loss, share) = (*weight, *loss, *share);
                driver.accept(&Accepted { id, worker, weight, loss, blocks, share, at });
            }
            &EventKind::Landed { id, worker, shard, share, .. } => {
                driver.accept_part(&AcceptedPart { id, worker, shard, share, at });
            }
            EventKind::Late { id, worker, .. } => driver.discard(*worker, *id),
            EventKind::Superseded { worker, base, .. } => driver.stop(*base, &[*worker]),
            EventKind::Cut { round, stragglers, .. }
                if !stragglers.is_empty() && driver.coordinator().machine().stops_stragglers() =>
            {
                driver.stop(round.base(), stragglers);
            }
            EventKind::Closed { round, closes, run_times } => {
                driver.close(*round, closes, run_times, at);
            }
            _ => {}
        }
        driver.record(event);
    }
    for (worker, id) in driver.coordinator().take_discards() {
        driver.discard(worker, id);
    }
    for (worker, leases) in driver.coordinator().take_leases() {
        driver.leases(worker, leases);
    }
    acted
}
