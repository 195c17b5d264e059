//! Memory shared with the shards that are on this host.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use paceline_shm::{HandoverClient, Publisher, Register, Segment};
use paceline_wire::{
    FrameError,
    message::{Invitation, SEGMENTS},
};

use crate::buffer::Buffer;

/// How long a shard of this host may take to send its segments.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The segments that this worker shares, created when the first shard of this host invites it.
pub(crate) struct Memory {
    elements: usize,
    segments: Option<Vec<Segment>>,
    /// Sharing is not wanted, or there is no memory for it.
    disabled: bool,
}

impl Memory {
    pub(crate) fn new(elements: usize, wanted: bool) -> Self {
        Memory { elements, segments: None, disabled: !wanted }
    }

    /// Accepts a shard's invitation, and tells the shard so with `announce`. Returns the segments in which
    /// the shard publishes its `part` elements; `None` if that fails, and values are then sent by TCP.
    pub(crate) fn join(
        &mut self,
        invitation: Option<&Invitation>,
        session: u64,
        part: usize,
        announce: impl FnOnce() -> Result<(), FrameError>,
    ) -> Result<Option<Arc<Publisher>>, FrameError> {
        let Some(invitation) = invitation.filter(|_| !self.disabled) else { return Ok(None) };
        let Ok(client) = HandoverClient::connect(&invitation.listener) else {
            tracing::debug!("the shard is on another host");
            return Ok(None);
        };
        let Some(segments) = self.segments() else { return Ok(None) };
        let sent = Register::new().and_then(|register| {
            let segments = segments.iter().map(AsFd::as_fd);
            let files: Vec<_> = segments.chain([register.as_fd()]).collect();
            client.send(session, &files)?;
            Ok(register)
        });
        let register = match sent {
            Ok(register) => register,
            Err(error) => {
                tracing::warn!("failed to share memory with a shard, so it goes by TCP: {error}");
                return Ok(None);
            }
        };
        announce()?;
        let publisher = client.publisher(TIMEOUT, part, register).inspect_err(|error| {
            tracing::warn!("failed to share a shard's memory, so it goes by TCP: {error}");
        });
        Ok(publisher.ok().map(Arc::new))
    }

    fn segments(&mut self) -> Option<&[Segment]> {
        if self.segments.is_none() {
            match (0..SEGMENTS).map(|_| Segment::new(self.elements)).collect() {
                Ok(segments) => self.segments = Some(segments),
                Err(error) => {
                    let bytes = self.elements.saturating_mul(SEGMENTS as usize * size_of::<f32>());
                    tracing::warn!(
                        "failed to get {} MiB of shared memory, so gradients go by TCP: {error}",
                        bytes.div_ceil(1 << 20)
                    );
                    self.disabled = true;
                }
            }
        }
        self.segments.as_deref()
    }

    /// The buffers that gradients are computed in: the shared segments, if there are any.
    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        match self.segments {
            None => vec![Buffer::Private(vec![0.0; self.elements])],
            Some(segments) => {
                let shared = (0..).zip(segments);
                shared.map(|(index, segment)| Buffer::Shared { index, segment }).collect()
            }
        }
    }
}
