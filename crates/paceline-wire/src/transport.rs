//! Where byte streams come from. TCP here; TLS and simulated networks fit the same traits. Shared
//! memory goes beside a stream, not instead of it.

use std::{
    fmt,
    future::Future,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, AsRawFd},
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};

/// What gradients and parameters go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Memory shared by worker and shard where they are on the same host, else TCP.
    #[default]
    Auto,
    /// TCP everywhere.
    Tcp,
}

/// What is no transport.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("unknown transport `{0}`: write auto or tcp")]
pub struct TransportError(String);

impl FromStr for Transport {
    type Err = TransportError;

    fn from_str(text: &str) -> Result<Self, TransportError> {
        match text {
            "auto" => Ok(Transport::Auto),
            "tcp" => Ok(Transport::Tcp),
            other => Err(TransportError(other.to_owned())),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Tcp => "tcp",
        })
    }
}

/// What says otherwise: the name of an algorithm that the kernel has, or `system` for its own choice.
const CONGESTION: &str = "PACELINE_CONGESTION";

/// Parameters and gradients come in bursts with nothing between them, from so many at once as the link
/// can take (the server gives leave). BBR would go on with the bandwidth of its last burst, which it
/// shared with others, and use half of the link; cubic fills it.
fn control_congestion(stream: impl AsFd) {
    let wanted = std::env::var(CONGESTION).unwrap_or_else(|_| "cubic".to_owned());
    if wanted != "system" {
        // A kernel without it, or that keeps it to others, does as it does.
        let _ = rustix::net::sockopt::set_tcp_congestion(stream, &wanted);
    }
}

/// File descriptors that accepted connections leave free, or a quarter of a small limit: for
/// checkpoints, logs, segments and processes that are opened later.
pub const RESERVED_DESCRIPTORS: u64 = 64;

/// Refuses a connection whose descriptor is one of the last that the process may have. The kernel gives
/// the lowest number that is free, so connections never get into the reserve.
fn check_reserve(stream: impl AsFd) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let number = stream.as_fd().as_raw_fd() as u64;
    match limit {
        Some(limit) if number >= limit - RESERVED_DESCRIPTORS.min(limit / 4) => {
            Err(io::Error::other(format!(
                "all of {limit} file descriptors are in use but a reserve; raise the limit \
                 (`ulimit -n`)"
            )))
        }
        _ => Ok(()),
    }
}

/// Accepts byte streams, for the server.
pub trait Listener: Send + 'static {
    /// The streams it accepts.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The address that other processes reach; `None` for a listener inside this process.
    fn address(&self) -> io::Result<Option<SocketAddr>>;

    /// The next stream, and who it is from, for people.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, String)>> + Send;
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;

    fn address(&self) -> io::Result<Option<SocketAddr>> {
        self.local_addr().map(Some)
    }

    async fn accept(&mut self) -> io::Result<(Self::Stream, String)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        check_reserve(&stream)?;
        stream.set_nodelay(true)?;
        control_congestion(&stream);
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
        control_congestion(&stream);
        Ok((Box::new(stream.try_clone()?), Box::new(stream)))
    }
}
