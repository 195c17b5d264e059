//! Memory shared with the shards that are on this host.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use paceline_shm::{Publisher, Register, Segment, Visit};
use paceline_wire::{
    FrameError,
    message::{Invitation, SEGMENTS},
};

use crate::buffer::Buffer;

/// How long a shard may take to hand over its segments; it is on this host.
const PATIENCE: Duration = Duration::from_secs(10);

/// What this worker shares, made when the first shard of this host invites it.
pub(crate) struct Memory {
    elements: usize,
    made: Option<Vec<Segment>>,
    /// It was tried in vain, or is not wanted.
    refused: bool,
}

impl Memory {
    pub(crate) fn new(elements: usize, wanted: bool) -> Self {
        Memory { elements, made: None, refused: !wanted }
    }

    /// Accepts a shard's invitation, and says so with `come`: returns what the shard publishes its `part`
    /// elements in. Whatever stands in the way leaves TCP.
    pub(crate) fn join(
        &mut self,
        invitation: Option<&Invitation>,
        session: u64,
        part: usize,
        come: impl FnOnce() -> Result<(), FrameError>,
    ) -> Result<Option<Arc<Publisher>>, FrameError> {
        let Some(invitation) = invitation.filter(|_| !self.refused) else { return Ok(None) };
        let Ok(visit) = Visit::to(&invitation.meeting) else {
            tracing::debug!("the shard is on another host");
            return Ok(None);
        };
        let Some(segments) = self.segments() else { return Ok(None) };
        let brought = Register::new().and_then(|register| {
            let segments = segments.iter().map(AsFd::as_fd);
            let files: Vec<_> = segments.chain([register.as_fd()]).collect();
            visit.bring(session, &files)?;
            Ok(register)
        });
        let register = match brought {
            Ok(register) => register,
            Err(error) => {
                tracing::warn!("failed to share memory with a shard, so it goes by TCP: {error}");
                return Ok(None);
            }
        };
        come()?;
        let publisher = visit.publisher(PATIENCE, part, register).inspect_err(|error| {
            tracing::warn!("failed to share a shard's memory, so it goes by TCP: {error}");
        });
        Ok(publisher.ok().map(Arc::new))
    }

    fn segments(&mut self) -> Option<&[Segment]> {
        if self.made.is_none() {
            match (0..SEGMENTS).map(|_| Segment::new(self.elements)).collect() {
                Ok(made) => self.made = Some(made),
                Err(error) => {
                    let bytes = self.elements.saturating_mul(SEGMENTS as usize * size_of::<f32>());
                    tracing::warn!(
                        "failed to get {} MiB of shared memory, so gradients go by TCP: {error}",
                        bytes.div_ceil(1 << 20)
                    );
                    self.refused = true;
                }
            }
        }
        self.made.as_deref()
    }

    /// Where gradients are computed: in what is shared, if anything is.
    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        match self.made {
            None => vec![Buffer::Private(vec![0.0; self.elements])],
            Some(made) => {
                let shared = (0..).zip(made);
                shared.map(|(index, segment)| Buffer::Shared { index, segment }).collect()
            }
        }
    }
}
