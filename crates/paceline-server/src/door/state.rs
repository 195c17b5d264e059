//! Connections of workers that offer a model, or send or fetch a state.

use std::{sync::Arc, time::Duration};

use paceline_core::{Version, WorkerId};
use paceline_wire::{
    FrameError, FrameReader, FrameWriter,
    message::Reply,
    offer::{Offer, OfferReply, StateHead},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf},
    sync::oneshot,
    time::timeout,
};

use super::{Door, NO_COORDINATOR};
use crate::{
    input::{InitialState, Input, OfferAnswer, OfferCall, StateCall, StateGrant},
    state::StateBlob,
};

impl Door {
    pub(super) async fn offer<S>(
        &self,
        mut reader: FrameReader<ReadHalf<S>>,
        mut writer: FrameWriter<WriteHalf<S>>,
        peer: String,
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let Some(coordinator) = &self.coordinator else {
            return self.refuse(writer, peer, NO_COORDINATOR).await;
        };
        if writer.message(&Reply::Welcome(())).await.is_err() {
            return;
        }
        let offer = match within(self.patience, reader.message::<Offer>()).await {
            Ok(offer) => offer,
            Err(error) => return self.reject(peer, error.to_string()),
        };
        let (reply, answer) = oneshot::channel();
        if coordinator.send(Input::Offer(OfferCall { offer, reply })).is_err() {
            return;
        }
        match answer.await {
            Ok(Ok(OfferAnswer::Run(reply))) => drop(writer.message(&Reply::Welcome(reply)).await),
            Ok(Ok(OfferAnswer::Define { bound, states })) => {
                if writer.message(&Reply::Welcome(OfferReply::SendState)).await.is_err() {
                    return;
                }
                let blob = match self.receive_state(&mut reader, Version(0), bound).await {
                    Ok(blob) => blob,
                    Err(error) => return self.refuse(writer, peer, &error.to_string()).await,
                };
                let (reply, started) = oneshot::channel();
                if states.send(InitialState { blob, reply }).is_err() {
                    return;
                }
                match started.await {
                    Ok(Ok(())) => drop(writer.message(&Reply::Welcome(())).await),
                    Ok(Err(why)) => self.refuse(writer, peer, &why).await,
                    Err(_) => {}
                }
            }
            Ok(Err(why)) => self.refuse(writer, peer, &why).await,
            Err(_) => {}
        }
    }

    pub(super) async fn state<S>(
        &self,
        mut reader: FrameReader<ReadHalf<S>>,
        mut writer: FrameWriter<WriteHalf<S>>,
        peer: String,
        (worker, session, upload): (WorkerId, u64, Option<Version>),
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let Some(coordinator) = &self.coordinator else {
            return self.refuse(writer, peer, NO_COORDINATOR).await;
        };
        let (reply, answer) = oneshot::channel();
        let call = StateCall { worker, session, upload, reply };
        if coordinator.send(Input::State(call)).is_err() {
            return;
        }
        let grant = match answer.await {
            Ok(Ok(grant)) => grant,
            Ok(Err(why)) => return self.refuse(writer, peer, &why).await,
            Err(_) => return,
        };
        let welcomed = writer.message(&Reply::Welcome(())).await;
        match grant {
            StateGrant::Download(blob) => {
                let sent = match welcomed {
                    Ok(()) => self.send_state(&mut writer, &blob).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = sent {
                    self.reject(peer, format!("failed to send {worker} a state: {error}"));
                }
            }
            StateGrant::Upload { version, bound } => {
                let received = match welcomed {
                    Ok(()) => self.receive_state(&mut reader, version, bound).await,
                    Err(error) => Err(error),
                };
                let (blob, error) = match received {
                    Ok(blob) => (Some(blob), None),
                    Err(error) => (None, Some(error)),
                };
                if coordinator.send(Input::Uploaded { worker, session, blob }).is_err() {
                    return;
                }
                match error {
                    None => drop(writer.message(&Reply::Welcome(())).await),
                    Some(error) => self.refuse(writer, peer, &error.to_string()).await,
                }
            }
        }
    }

    /// The state of `version` that follows, of at most `bound` bytes. Memory is taken as chunks arrive.
    async fn receive_state<R: AsyncRead + Unpin>(
        &self,
        reader: &mut FrameReader<R>,
        version: Version,
        bound: u64,
    ) -> Result<StateBlob, FrameError> {
        let head: StateHead = within(self.patience, reader.message()).await?;
        if head.version != version {
            let error = format!("a state of {} where {version} was due", head.version);
            return Err(FrameError::Unexpected(error));
        }
        if head.bytes > bound {
            let (len, limit) = (head.bytes as usize, bound as usize);
            return Err(FrameError::TooLong { len, limit });
        }
        let (mut bytes, len) = (Vec::new(), head.bytes as usize);
        while bytes.len() < len {
            let took = within(self.patience, reader.chunk(&mut bytes)).await?;
            if took == 0 || bytes.len() > len {
                return Err(FrameError::Unexpected(format!(
                    "a chunk of {took} bytes at {} of {len}",
                    bytes.len() - took
                )));
            }
        }
        Ok(StateBlob { version, bytes: Arc::new(bytes) })
    }

    async fn send_state<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut FrameWriter<W>,
        blob: &StateBlob,
    ) -> Result<(), FrameError> {
        within(self.patience, writer.message(&blob.head())).await?;
        for chunk in blob.chunks() {
            within(self.patience, writer.chunk(chunk)).await?;
        }
        Ok(())
    }
}

/// The outcome of `work`, or a timeout.
async fn within<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, FrameError>>,
) -> Result<T, FrameError> {
    let outcome = timeout(patience, work).await;
    outcome.unwrap_or_else(|_| Err(FrameError::Io(std::io::ErrorKind::TimedOut.into())))
}
