//! How two processes of one host hand each other segments.
//!
//! Only a Unix socket carries files, and only inside one host, so a process that receives one is on this
//! host. The socket has a random name in the abstract namespace, which vanishes with it.

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
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg, sockopt::socket_peercred,
};

/// The most files in one message.
const MAX_FILES: usize = 8;

/// The most clients that are looked at to find the expected one: twice as many as the system queues for a
/// standard listener.
const MAX_CLIENTS: usize = 256;

/// Listens for one client, which learns the name by other means.
#[derive(Debug)]
pub struct HandoverListener {
    listener: UnixListener,
    name: String,
}

impl HandoverListener {
    /// Listens under a name that nobody can guess, if `nonce` is random. Every process of the host can look
    /// the name up, though, so to know it proves nothing.
    pub fn bind(nonce: u128) -> io::Result<Self> {
        let name = format!("paceline-{nonce:032x}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(HandoverListener { listener, name })
    }

    /// The name, for the expected client.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Accepts the client that has sent `proof`, and closes the connections of others. Does not wait: the
    /// client announces by other means that it has connected.
    pub fn accept(&self, proof: u64) -> io::Result<HandoverPeer> {
        for _ in 0..MAX_CLIENTS {
            let (stream, _) = self.listener.accept()?;
            stream.set_nonblocking(true)?;
            match receive(&stream) {
                Ok((sent, files)) if sent == proof => return Ok(HandoverPeer { stream, files }),
                _ => {}
            }
        }
        Err(io::Error::other("too many clients that were not expected"))
    }
}

/// A client of a [`HandoverListener`], for as long as it is connected.
#[derive(Debug)]
pub struct HandoverPeer {
    stream: UnixStream,
    files: Vec<OwnedFd>,
}

impl HandoverPeer {
    /// The files that it sent.
    pub fn files(&self) -> &[OwnedFd] {
        &self.files
    }

    /// Sends it files.
    pub(crate) fn send(&self, files: &[OwnedFd]) -> io::Result<()> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        send(&self.stream, 0, &files)
    }

    /// Whether it has closed its end, as the end of its process does.
    pub(crate) fn is_gone(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut byte = [0u8];
        match recv(&self.stream, &mut byte[..], flags) {
            Ok((_, bytes)) => bytes == 0,
            Err(error) => error != rustix::io::Errno::AGAIN && error != rustix::io::Errno::INTR,
        }
    }
}

/// The client's end of a connection to a [`HandoverListener`].
#[derive(Debug)]
pub struct HandoverClient {
    stream: UnixStream,
}

impl HandoverClient {
    /// Connects to the listener of that name. It fails, at once, on any other host.
    pub fn connect(name: &str) -> io::Result<Self> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok(HandoverClient { stream })
    }

    /// Sends `proof` and `files`.
    pub fn send(&self, proof: u64, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.stream, proof, files)
    }

    /// Waits for the segments of a [`Publication`](crate::Publication), of so many values each, which has
    /// the file of `register`. It counts as a reader until the publisher is dropped.
    pub fn publisher(
        self,
        timeout: Duration,
        elements: usize,
        register: Register,
    ) -> Result<Publisher, ViewError> {
        let files = self.receive(timeout)?;
        Publisher::new(files, elements, register, self)
    }

    /// Waits for the files that the listener's side sends.
    pub fn receive(&self, timeout: Duration) -> io::Result<Vec<OwnedFd>> {
        self.stream.set_read_timeout(Some(timeout))?;
        receive(&self.stream).map(|(_, files)| files)
    }

    /// Whether the listener's process could write this process's memory anyway: it is the same user's, or
    /// the superuser's.
    pub(crate) fn is_trusted(&self) -> bool {
        socket_peercred(&self.stream)
            .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
    }
}

fn send(stream: &UnixStream, number: u64, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    if !attached.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too many files for one message"));
    }
    let number = number.to_le_bytes();
    match sendmsg(stream, &[IoSlice::new(&number)], &mut attached, SendFlags::NOSIGNAL)? {
        sent if sent == number.len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

fn receive(stream: &UnixStream) -> io::Result<(u64, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
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

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn nonce(of: u128) -> u128 {
        (u128::from(std::process::id()) << 64) | of
    }

    #[test]
    fn segments_change_hands() {
        let listener = HandoverListener::bind(nonce(1)).unwrap();
        let mut theirs = Segment::new(3).unwrap();
        let client = HandoverClient::connect(listener.name()).unwrap();
        client.send(7, &[theirs.as_fd(), theirs.as_fd()]).unwrap();
        let peer = listener.accept(7).unwrap();
        assert_eq!(peer.files().len(), 2);
        let view = View::map(&peer.files()[1], 3).unwrap();
        let ours = Segment::new(5).unwrap();
        peer.send(&[ours.as_fd().try_clone_to_owned().unwrap()]).unwrap();
        let given = client.receive(TIMEOUT).unwrap();
        assert_eq!(View::map(&given[0], 5).unwrap().len(), 5);
        theirs[2] = 4.0;
        let mut copy = [0.0; 3];
        view.read(0, &mut copy);
        assert_eq!(copy, [0.0, 0.0, 4.0]);
    }

    #[test]
    fn clients_without_the_proof_are_disconnected() {
        let listener = HandoverListener::bind(nonce(2)).unwrap();
        let silent = HandoverClient::connect(listener.name()).unwrap();
        let stranger = HandoverClient::connect(listener.name()).unwrap();
        stranger.send(1, &[]).unwrap();
        let expected = HandoverClient::connect(listener.name()).unwrap();
        expected.send(2, &[]).unwrap();
        listener.accept(2).unwrap().send(&[]).unwrap();
        assert!(expected.receive(TIMEOUT).unwrap().is_empty());
        let errors = [silent, stranger].map(|client| client.receive(TIMEOUT).unwrap_err());
        assert!(errors.iter().all(|error| error.kind() != ErrorKind::WouldBlock));
        assert_eq!(listener.accept(2).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_listener_that_is_gone_cannot_be_reached() {
        let name = HandoverListener::bind(nonce(3)).unwrap().name().to_owned();
        assert!(HandoverClient::connect(&name).is_err());
    }

    #[test]
    fn a_client_is_gone_once_it_has_closed_its_end() {
        let listener = HandoverListener::bind(nonce(4)).unwrap();
        let client = HandoverClient::connect(listener.name()).unwrap();
        client.send(1, &[]).unwrap();
        assert!(client.is_trusted(), "it is the same process");
        let peer = listener.accept(1).unwrap();
        assert!(!peer.is_gone());
        drop(client);
        assert!(peer.is_gone());
    }
}
