//! The protocol between workers, coordinator and shards; `docs/protocol.md` describes it.
//!
//! [`frame`] handles bytes and bounds and does no I/O; [`message`] defines the messages and
//! [`offer`] those of workers that bring their own model; the drivers
//! ([`FrameReader`], [`FrameWriter`] for tokio, [`BlockingReader`], [`BlockingWriter`] for plain threads)
//! only move bytes. A transport is anything that accepts ([`Listener`]) or connects ([`Connect`]) byte
//! streams.

mod blocking;
pub mod frame;
pub mod message;
pub mod offer;
mod stream;
mod transport;

pub use blocking::{BlockingReader, BlockingWriter};
pub use frame::{FrameError, PROTOCOL};
pub use stream::{FrameReader, FrameWriter};
pub use transport::{
    Connect, Connection, Listener, RESERVED_DESCRIPTORS, Tcp, Transport, TransportError,
};
