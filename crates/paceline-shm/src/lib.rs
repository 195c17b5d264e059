//! Memory shared between processes of one host.
//!
//! A [`Segment`] is a vector of `f32` that its owner reads and writes like any other, and that other
//! processes copy from through a [`View`]. A [`Publication`] is a set of segments for versions of the
//! same values: a [`Reader`] keeps one of them, which is then not written, and reads it in place. A
//! [`HandoverListener`] hands segments from process to process.
//!
//! A segment is an anonymous file (`memfd`), so nothing is left of it when the last process that
//! holds it has gone, however it went. It is sealed before any other process sees it: no process can make
//! it shorter, so that no reader runs into its end (`SIGBUS`), and none but its owner can write to it. A
//! view refuses files without these seals.

mod handover;
mod keep;
mod mapping;
mod protocol;
mod publication;
mod room;
mod segment;
mod view;

pub use handover::{HandoverClient, HandoverListener, HandoverPeer};
pub use keep::{Kept, Publisher, Reader, Register};
pub use publication::{Attachment, Publication, Readers};
pub use room::{RoomError, check_room};
pub use segment::Segment;
pub use view::{View, ViewError};
