//! Memory shared between processes of one host.
//!
//! A [`Segment`] is a vector of `f32` that its owner reads and writes like any other, and that
//! others see through a [`View`], which copies out of it, or through a [`Reader`], which keeps it from
//! being written to for as long as it is read. Segments change hands at a [`Meeting`].
//!
//! A segment is an anonymous file (`memfd`), so nothing is left of it when the last process that
//! holds it has gone, however it went. It is sealed before anybody else sees it: nobody can make it
//! shorter, so that no reader runs into its end (`SIGBUS`), and nobody but its owner can write to
//! it. A view takes nothing else.

mod keep;
mod mapping;
mod meeting;
mod room;
mod segment;
mod view;

pub use keep::{Kept, Publisher, Reader, Register};
pub use meeting::{Guest, Meeting, Visit};
pub use room::{RoomError, check_room};
pub use segment::Segment;
pub use view::{View, ViewError};
