//! Where two processes of one host hand each other segments.
//!
//! Files can be handed over a Unix socket alone, and only inside one host: who gets one is there.
//! The socket has a random name in the abstract namespace, which vanishes with it.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use crate::{Publisher, Register, ViewError};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most files that are handed over at once.
const MOST: usize = 8;

/// The most who are looked at to find the one that is expected: as many as the system lets wait for
/// a standard listener, twice.
const CROWD: usize = 256;

/// Where somebody is expected who is told of it by other means.
#[derive(Debug)]
pub struct Meeting {
    listener: UnixListener,
    name: String,
}

impl Meeting {
    /// A meeting at a place that nobody can guess, if `nonce` is drawn at random. Anybody on the
    /// host can look the name up, though, so it proves nothing.
    pub fn open(nonce: u128) -> io::Result<Self> {
        let name = format!("paceline-{nonce:032x}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Meeting { listener, name })
    }

    /// What to tell whoever is expected.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The one who has come and shows `proof`; others are sent away. Does not wait: who is expected
    /// says, by other means, that it has come.
    pub fn guest(&self, proof: u64) -> io::Result<Guest> {
        for _ in 0..CROWD {
            let (stream, _) = self.listener.accept()?;
            stream.set_nonblocking(true)?;
            match receive(&stream) {
                Ok((shown, files)) if shown == proof => return Ok(Guest { stream, files }),
                _ => {}
            }
        }
        Err(io::Error::other("too many came who were not expected"))
    }
}

/// Somebody who has come to a [`Meeting`].
#[derive(Debug)]
pub struct Guest {
    stream: UnixStream,
    files: Vec<OwnedFd>,
}

impl Guest {
    /// What it brought.
    pub fn files(&self) -> &[OwnedFd] {
        &self.files
    }

    /// Gives it these, and parts.
    pub fn give(self, files: &[OwnedFd]) -> io::Result<()> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        send(&self.stream, 0, &files)
    }
}

/// The other side of a [`Meeting`].
#[derive(Debug)]
pub struct Visit {
    stream: UnixStream,
}

impl Visit {
    /// Goes to the meeting of that name. It fails, at once, on any other host than its own.
    pub fn to(name: &str) -> io::Result<Self> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok(Visit { stream })
    }

    /// Shows `proof` and hands over `files`.
    pub fn bring(&self, proof: u64, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.stream, proof, files)
    }

    /// What is given in return, within `patience`: what the other side publishes in, so many values a
    /// segment. It has the file of `register`, and is trusted to look there before it writes where this
    /// side reads, as its values are: one that does not changes what is computed from, in both senses.
    pub fn publisher(
        self,
        patience: Duration,
        elements: usize,
        register: Register,
    ) -> Result<Publisher, ViewError> {
        Publisher::of(self.receive(patience)?, elements, register)
    }

    /// What is given in return, within `patience`.
    pub fn receive(self, patience: Duration) -> io::Result<Vec<OwnedFd>> {
        self.stream.set_read_timeout(Some(patience))?;
        receive(&self.stream).map(|(_, files)| files)
    }
}

fn send(stream: &UnixStream, number: u64, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    if !attached.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too many files to hand over"));
    }
    let number = number.to_le_bytes();
    match sendmsg(stream, &[IoSlice::new(&number)], &mut attached, SendFlags::NOSIGNAL)? {
        sent if sent == number.len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

fn receive(stream: &UnixStream) -> io::Result<(u64, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut number = [0; size_of::<u64>()];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut number)], &mut attached, flags)?;
    let mut files = Vec::new();
    for message in attached.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            files.extend(some);
        }
    }
    match received.bytes {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        bytes if bytes < number.len() || received.flags.contains(ReturnFlags::CTRUNC) => {
            Err(ErrorKind::InvalidData.into())
        }
        _ => Ok((u64::from_le_bytes(number), files)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Segment, View};

    const PATIENCE: Duration = Duration::from_secs(5);

    fn nonce(of: u128) -> u128 {
        (u128::from(std::process::id()) << 64) | of
    }

    #[test]
    fn segments_change_hands() {
        let meeting = Meeting::open(nonce(1)).unwrap();
        let mut theirs = Segment::new(3).unwrap();
        let visit = Visit::to(meeting.name()).unwrap();
        visit.bring(7, &[theirs.as_fd(), theirs.as_fd()]).unwrap();
        let guest = meeting.guest(7).unwrap();
        assert_eq!(guest.files().len(), 2);
        let view = View::of(&guest.files()[1], 3).unwrap();
        let ours = Segment::new(5).unwrap();
        guest.give(&[ours.as_fd().try_clone_to_owned().unwrap()]).unwrap();
        let given = visit.receive(PATIENCE).unwrap();
        assert_eq!(View::of(&given[0], 5).unwrap().len(), 5);
        theirs[2] = 4.0;
        let mut copy = [0.0; 3];
        view.read(0, &mut copy);
        assert_eq!(copy, [0.0, 0.0, 4.0]);
    }

    #[test]
    fn strangers_and_the_silent_are_sent_away() {
        let meeting = Meeting::open(nonce(2)).unwrap();
        let silent = Visit::to(meeting.name()).unwrap();
        let stranger = Visit::to(meeting.name()).unwrap();
        stranger.bring(1, &[]).unwrap();
        let awaited = Visit::to(meeting.name()).unwrap();
        awaited.bring(2, &[]).unwrap();
        meeting.guest(2).unwrap().give(&[]).unwrap();
        assert!(awaited.receive(PATIENCE).unwrap().is_empty());
        let sent_away = [silent, stranger].map(|visit| visit.receive(PATIENCE).unwrap_err());
        assert!(sent_away.iter().all(|error| error.kind() != ErrorKind::WouldBlock));
        assert_eq!(meeting.guest(2).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn there_is_no_way_to_a_meeting_that_is_over() {
        let name = Meeting::open(nonce(3)).unwrap().name().to_owned();
        assert!(Visit::to(&name).is_err());
    }
}
