//! Sources of byte streams. TCP here; TLS and simulated networks fit the same traits. Shared memory is used
//! beside a stream, not instead of it.

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

/// The transport of gradients and parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Memory shared by worker and shard if they are on the same host, else TCP.
    #[default]
    Auto,
    /// TCP everywhere.
    Tcp,
}

/// The text names no transport.
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

/// Environment variable that overrides the congestion control: an algorithm of the kernel, or `system` for
/// the kernel's default.
const CONGESTION: &str = "PACELINE_CONGESTION";

/// Selects cubic. Parameters and gradients come in bursts with pauses between them, from no more peers at
/// once than the link can take (the server limits them). BBR would continue with the bandwidth of its last
/// burst, which it shared with others, and use half of the link; cubic fills it.
fn control_congestion(stream: impl AsFd) {
    let wanted = std::env::var(CONGESTION).unwrap_or_else(|_| "cubic".to_owned());
    if wanted != "system" {
        // A kernel that lacks it, or does not permit it, keeps its default.
        let _ = rustix::net::sockopt::set_tcp_congestion(stream, &wanted);
    }
}

/// File descriptors that accepted connections leave free, or a quarter of a small limit. They serve
/// checkpoints, logs, segments and processes that are opened later.
pub const RESERVED_DESCRIPTORS: u64 = 64;

/// Refuses a connection whose descriptor is among the last of the process's limit. The kernel assigns the
/// lowest free number, so connections never use the reserve.
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

    /// The next stream, and the peer's address for display.
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

/// The two directions of a blocking byte stream, used by different threads.
pub type Connection = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Opens blocking byte streams, for workers.
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
