//! Workers that bring their model: they offer it to the server, and exchange states with other workers through
//! the server. Each function opens a connection of its own.

use std::{fmt, ops::ControlFlow};

use paceline_core::{Version, WorkerId};
use paceline_wire::{
    Connect, FrameError,
    frame::MAX_CHUNK,
    message::Role,
    offer::{Offer, OfferReply, StateHead},
};

use crate::client::{Reader, WorkerConfig, WorkerError, Writer, handshake, welcome};

/// Called after each chunk of a state, with the bytes so far and the bytes in all. `Break` ends the transfer.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// The server's answer to an offer.
#[derive(Debug)]
pub enum Offered {
    /// The offer defines the run, which waits for the initial state.
    Define(InitialUpload),
    /// The run starts from the values that the worker has.
    Keep,
    /// The worker's values are not the run's: it must fetch this state or a newer one once it has joined.
    Take {
        /// The run's version.
        version: Version,
        /// Tensors whose initial values differ from those that the run started from, by their index.
        differing: Vec<u32>,
    },
}

/// The connection on which the server waits for the initial state. If it is dropped, another worker's offer
/// defines the run.
pub struct InitialUpload {
    address: String,
    reader: Reader,
    writer: Writer,
}

impl fmt::Debug for InitialUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InitialUpload").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Offers a model to the server at `config.address`. Waits while another worker's initial state is on its
/// way.
pub fn offer(
    config: &WorkerConfig,
    connect: &dyn Connect,
    offer: &Offer,
) -> Result<Offered, WorkerError> {
    let address = config.address.clone();
    let offered = || -> Result<Offered, FrameError> {
        let (mut reader, mut writer, ()) =
            handshake(connect, &address, config.token(), Role::Offer)?;
        writer.message(offer)?;
        Ok(match welcome(&mut reader)? {
            OfferReply::SendState => {
                Offered::Define(InitialUpload { address: address.clone(), reader, writer })
            }
            OfferReply::KeepState => Offered::Keep,
            OfferReply::TakeState { version, differing } => Offered::Take { version, differing },
        })
    };
    offered().map_err(|error| WorkerError::Join { address: config.address.clone(), error })
}

impl InitialUpload {
    /// Sends the state that the run starts from.
    pub fn send(mut self, bytes: &[u8], progress: Progress<'_>) -> Result<(), WorkerError> {
        let sent = send(&mut self.reader, &mut self.writer, Version(0), bytes, progress);
        let sent = sent.map_err(|error| WorkerError::Join { address: self.address, error })?;
        sent.ok_or(WorkerError::Interrupted)
    }
}

/// Sends the server a state of `version`, as the worker that was given this number and session.
pub fn upload(
    config: &WorkerConfig,
    connect: &dyn Connect,
    (worker, session): (WorkerId, u64),
    version: Version,
    bytes: &[u8],
    progress: Progress<'_>,
) -> Result<(), WorkerError> {
    let role = Role::State { worker, session, upload: Some(version) };
    let sent = handshake(connect, &config.address, config.token(), role).and_then(
        |(mut reader, mut writer, ())| send(&mut reader, &mut writer, version, bytes, progress),
    );
    sent.map_err(WorkerError::State)?.ok_or(WorkerError::Interrupted)
}

/// Fetches the server's newest state, as the worker that was given this number and session.
pub fn download(
    config: &WorkerConfig,
    connect: &dyn Connect,
    (worker, session): (WorkerId, u64),
    progress: Progress<'_>,
) -> Result<(Version, Vec<u8>), WorkerError> {
    let role = Role::State { worker, session, upload: None };
    let fetch = || -> Result<Option<(Version, Vec<u8>)>, FrameError> {
        let (mut reader, _writer, ()) = handshake(connect, &config.address, config.token(), role)?;
        let head: StateHead = reader.message()?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < head.bytes {
            let took = reader.chunk(&mut bytes)?;
            if took == 0 || bytes.len() as u64 > head.bytes {
                let error = format!("a chunk of {took} bytes in a state of {}", head.bytes);
                return Err(FrameError::Unexpected(error));
            }
            if progress(bytes.len() as u64, head.bytes).is_break() {
                return Ok(None);
            }
        }
        Ok(Some((head.version, bytes)))
    };
    fetch().map_err(WorkerError::State)?.ok_or(WorkerError::Interrupted)
}

/// Sends a state and waits until the server has it; `None` if the caller ended the transfer.
fn send(
    reader: &mut Reader,
    writer: &mut Writer,
    version: Version,
    bytes: &[u8],
    progress: Progress<'_>,
) -> Result<Option<()>, FrameError> {
    match send_chunks(writer, version, bytes, progress) {
        Ok(ControlFlow::Continue(())) => welcome(reader).map(Some),
        Ok(ControlFlow::Break(())) => Ok(None),
        // A server that refuses a state says why before it closes the connection.
        Err(error) => Err(match welcome::<()>(reader) {
            Err(refused @ FrameError::Refused(_)) => refused,
            _ => error,
        }),
    }
}

fn send_chunks(
    writer: &mut Writer,
    version: Version,
    bytes: &[u8],
    progress: Progress<'_>,
) -> Result<ControlFlow<()>, FrameError> {
    let total = bytes.len() as u64;
    writer.message(&StateHead { version, bytes: total })?;
    let mut sent = 0;
    for chunk in bytes.chunks(MAX_CHUNK) {
        writer.chunk(chunk)?;
        sent += chunk.len() as u64;
        if progress(sent, total).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
