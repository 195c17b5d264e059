//! Offers that reach a run that has its model already.

use paceline_core::Version;
use paceline_wire::offer::{Offer, OfferReply};

use super::Run;
use crate::input::{OfferAnswer, OfferCall};

impl Run {
    pub(super) fn compare(&mut self, OfferCall { offer, reply }: OfferCall) {
        let _ = reply.send(self.answer(&offer).map(OfferAnswer::Run));
    }

    fn answer(&self, offer: &Offer) -> Result<OfferReply, String> {
        if self.ending.reason.is_some() {
            return Err("the run is over".to_owned());
        }
        let Some(run) = &self.offer else {
            return Err("this server trains a model of its own; start it with --model offered \
                        for workers that bring theirs"
                .to_owned());
        };
        if let Some(difference) = offer.difference(run) {
            return Err(difference);
        }
        let version = self.updates.version;
        if self.is_resumed {
            if let Some(difference) = offer.other_frozen_values(run) {
                return Err(difference);
            }
            return Ok(OfferReply::TakeState { version, differing: Vec::new() });
        }
        let differing = offer.other_values(run);
        Ok(match version == Version(0) && differing.is_empty() {
            true => OfferReply::KeepState,
            false => OfferReply::TakeState { version, differing },
        })
    }
}
