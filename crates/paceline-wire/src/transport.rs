//! Where byte streams come from. TCP here; TLS, shared memory and simulated networks fit the same
//! traits.

use std::{
    future::Future,
    io::{self, Read, Write},
    net::TcpStream,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};

/// Accepts byte streams, for the server.
pub trait Listener: Send + 'static {
    /// The streams it accepts.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next stream, and who it is from, for people.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, String)>> + Send;
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&mut self) -> io::Result<(Self::Stream, String)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((stream, peer.to_string()))
    }
}

/// A blocking byte stream's two directions, used by different threads.
pub type Connection = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Makes blocking byte streams, for workers.
pub trait Connect: Send + Sync {
    /// Connects to `address`.
    fn connect(&self, address: &str) -> io::Result<Connection>;
}

/// Plain TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Connect for Tcp {
    fn connect(&self, address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream.try_clone()?), Box::new(stream)))
    }
}
