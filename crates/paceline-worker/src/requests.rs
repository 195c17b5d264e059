//! The writing direction of a data connection: requests for parameters, and the blocks of gradients.

use std::{
    io::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

use paceline_params::{WireType, narrow};
use paceline_wire::{
    BlockingWriter, FrameError,
    frame::{BlockHead, Values},
    message::ToData,
};

/// The writing direction, shared by two threads: the one that answers cuts cancels a pull while the other one
/// reads the answer.
pub(crate) struct RequestWriter(Mutex<Requests>);

/// The writing direction, held by one thread.
pub(crate) struct Requests {
    writer: BlockingWriter<Box<dyn Write + Send>>,
    wire: WireType,
    /// The outgoing block as 16-bit floats, if it is sent so.
    halves: Vec<u16>,
    /// Whether a pull was requested and its answer is not fully read.
    pulling: bool,
    /// `Cancel` messages sent so far.
    cancels: u64,
}

impl RequestWriter {
    /// Blocks are sent as `wire` says.
    pub(crate) fn new(writer: BlockingWriter<Box<dyn Write + Send>>, wire: WireType) -> Self {
        let (halves, pulling, cancels) = (Vec::new(), false, 0);
        RequestWriter(Mutex::new(Requests { writer, wire, halves, pulling, cancels }))
    }

    /// Asks the shard to end the answer that is being read, if there is one.
    pub(crate) fn cancel_pull(&self) -> Result<(), FrameError> {
        let mut requests = self.lock();
        if std::mem::take(&mut requests.pulling) {
            requests.cancels += 1;
            requests.message(&ToData::Cancel)?;
        }
        Ok(())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    /// `Cancel` messages sent so far.
    pub(crate) fn cancels(&self) -> u64 {
        self.cancels
    }

    /// Sends the request for a pull. Its answer may be cancelled until [`Self::finish_pull`].
    pub(crate) fn pull(&mut self, pull: &ToData) -> Result<(), FrameError> {
        self.pulling = true;
        self.message(pull)
    }

    /// The answer is fully read: a cancel has nothing to end.
    pub(crate) fn finish_pull(&mut self) {
        self.pulling = false;
    }

    pub(crate) fn message(&mut self, message: &ToData) -> Result<(), FrameError> {
        self.writer.message(message)
    }

    /// Sends a block of a gradient, as 16-bit floats if the connection has these.
    pub(crate) fn block(&mut self, head: BlockHead, values: &[f32]) -> Result<(), FrameError> {
        let values = match self.wire {
            WireType::F32 => Values::from(values),
            WireType::Half(half) => {
                self.halves.resize(values.len(), 0);
                narrow(half, values, &mut self.halves);
                Values::half(half, &self.halves)
            }
        };
        self.writer.block(head, values)
    }
}
