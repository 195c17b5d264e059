//! The start of a run whose model a worker brings.

use std::time::Duration;

use paceline_core::{NoiseScale, Version};
use paceline_params::{FlatVec, Layout};
use paceline_wire::offer::{Offer, OfferReply, OfferedUpdate};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    config::{ResumedOffer, ServerConfig, Start},
    entrance::Entrance,
    error::ServerError,
    input::{InitialState, Input, OfferAnswer, OfferCall},
    run::{OfferedOrigin, Origin},
    state::{MAX_FROZEN_BYTES, StateBlob},
};

/// The most parameters of an offered model: 64 GiB as `f32`.
const MAX_PARAMETERS: usize = 1 << 34;

impl Entrance {
    /// Waits until a worker has offered a model that `plan` takes and has sent its initial state. If the worker
    /// leaves before that, the next offer takes its place. Other inputs wait in the queue.
    ///
    /// A `resumed` run has its state. It waits for a worker with the same model and data.
    pub(crate) async fn await_offer(
        &mut self,
        plan: &mut impl FnMut(&Offer) -> Result<ServerConfig, String>,
        idle: Duration,
        mut resumed: Option<ResumedOffer>,
    ) -> Result<(ServerConfig, Origin), ServerError> {
        let mut early = Vec::new();
        let outcome = loop {
            let OfferCall { offer, reply } = self.next_offer(idle, &mut early).await?;
            let fits = resumed.as_ref().map_or(Ok(()), |resumed| resumed.check(&offer));
            let (config, layout) = match fits.and_then(|()| prepare(&offer, plan)) {
                Ok(planned) => planned,
                Err(why) => {
                    let _ = reply.send(Err(why));
                    continue;
                }
            };
            if let Some(resumed) = resumed.take() {
                let version = resumed.start.version;
                let answer = OfferReply::TakeState { version, differing: Vec::new() };
                let _ = reply.send(Ok(OfferAnswer::Run(answer)));
                break (config, resumed.origin(offer));
            }
            let (states, state) = oneshot::channel();
            let bound = StateBlob::bound(layout.total(), offer.frozen_bytes);
            let _ = reply.send(Ok(OfferAnswer::Define { bound, states }));
            let Ok(InitialState { blob, reply }) = state.await else {
                tracing::warn!(
                    "the worker that offered a model left before its state was complete"
                );
                continue;
            };
            match start(&offer, &blob, &layout) {
                Ok(start) => {
                    let _ = reply.send(Ok(()));
                    let (state, record, is_resumed) = (Some(blob), None, false);
                    let offered = OfferedOrigin { offer, state, record, is_resumed };
                    break (config, Origin { start, offered: Some(offered) });
                }
                Err(why) => {
                    let _ = reply.send(Err(why));
                }
            }
        };
        // Each waits for an answer, so nothing of the same connection has come since.
        early.into_iter().for_each(|input| drop(self.inputs.send(input)));
        Ok(outcome)
    }

    async fn next_offer(
        &mut self,
        idle: Duration,
        early: &mut Vec<Input>,
    ) -> Result<OfferCall, ServerError> {
        let deadline = Instant::now() + idle;
        loop {
            match timeout_at(deadline, self.queue.recv()).await {
                Ok(Some(Input::Offer(call))) => return Ok(call),
                Ok(Some(other)) => early.push(other),
                Ok(None) => return Err(ServerError::NoInputs),
                Err(_) => return Err(ServerError::NoOffer(idle)),
            }
        }
    }
}

impl ResumedOffer {
    /// Whether the run can go on with the model and the data of this offer.
    fn check(&self, offer: &Offer) -> Result<(), String> {
        let difference = offer.other_task(&self.offer);
        match difference.or_else(|| offer.other_frozen_values(&self.offer)) {
            Some(difference) => Err(format!(
                "{difference}; a run is resumed with the model, optimizer and data that it had"
            )),
            None => Ok(()),
        }
    }

    fn origin(self, offer: Offer) -> Origin {
        let ResumedOffer { start, worker_state, record, .. } = self;
        let state = worker_state.map(|bytes| StateBlob { version: start.version, bytes });
        let offered = OfferedOrigin { offer, state, record, is_resumed: true };
        Origin { start, offered: Some(offered) }
    }
}

fn prepare(
    offer: &Offer,
    plan: &mut impl FnMut(&Offer) -> Result<ServerConfig, String>,
) -> Result<(ServerConfig, Layout), String> {
    if offer.hashes.len() != offer.tensors.len() {
        let (hashes, tensors) = (offer.hashes.len(), offer.tensors.len());
        return Err(format!("the offer has {hashes} hashes for {tensors} tensors"));
    }
    if offer.frozen_bytes > MAX_FROZEN_BYTES {
        return Err(format!(
            "frozen parameters and buffers of {} GiB are more than the {} GiB that a server takes",
            offer.frozen_bytes >> 30,
            MAX_FROZEN_BYTES >> 30
        ));
    }
    let config = plan(offer)?;
    config.check().map_err(|error| error.to_string())?;
    let placement = &config.placement;
    let layout = Layout::new(offer.tensors.clone(), placement.block_elems, placement.shards)
        .map_err(|error| error.to_string())?;
    match layout.total() <= MAX_PARAMETERS {
        true => Ok((config, layout)),
        false => Err(format!(
            "{} parameters are more than the {MAX_PARAMETERS} that a server takes",
            layout.total()
        )),
    }
}

/// The shards' initial parameters: zeros where they hold means, else those of the state.
fn start(offer: &Offer, blob: &StateBlob, layout: &Layout) -> Result<Start, String> {
    let params = match offer.update {
        OfferedUpdate::Mean => FlatVec::from(vec![0.0; layout.total()]),
        OfferedUpdate::Server(_) => blob.parameters(&offer.tensors)?,
    };
    Ok(Start {
        tensors: offer.tensors.clone(),
        params,
        slots: Vec::new(),
        version: Version(0),
        step: 0,
        ledger: None,
        noise: NoiseScale::default(),
    })
}
