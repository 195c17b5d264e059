//! The network between one worker and the server, made worse on purpose.

use std::{
    ffi::OsString,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use thiserror::Error;

use crate::{
    plan::ProcessFaults,
    proxy::{Path, Proxy, Route},
    shaped_link::{LinkError, LinkSpec, ShapedLink},
};

/// How one worker reaches the server: directly, through a proxy, or through a proxy at the end of a slow
/// link. Dropping it takes proxy and link away.
#[derive(Debug)]
pub struct WorkerNetwork {
    address: SocketAddr,
    proxy: Option<Proxy>,
    link: Option<ShapedLink>,
}

/// Why a worker's network cannot be made worse.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The proxy does not start.
    #[error("failed to start a proxy: {0}")]
    Proxy(#[from] io::Error),
    /// The link cannot be set up.
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl WorkerNetwork {
    /// Sets up the network that `faults` ask for between `worker` and the server at `server`. A process
    /// started with the command `program` keeps the link. Losses depend on `seed`.
    pub fn start(
        program: &[OsString],
        worker: u32,
        faults: &ProcessFaults,
        server: SocketAddr,
        seed: u64,
    ) -> Result<Self, NetworkError> {
        let mut network = WorkerNetwork { address: server, proxy: None, link: None };
        let (mut at, mut only) = (IpAddr::V4(Ipv4Addr::LOCALHOST), None);
        if let Some(rate) = faults.rate {
            let owner = std::process::id();
            let link = ShapedLink::start(program, LinkSpec { owner, worker, rate })?;
            (at, only) = (link.here, Some(link.there));
            network.link = Some(link);
        }
        if only.is_some() || faults.path != Path::default() {
            let seed = seed ^ (u64::from(worker) << 40);
            let proxy = Proxy::start(Route { at, only, server, path: faults.path, seed })?;
            network.address = proxy.address();
            network.proxy = Some(proxy);
        }
        Ok(network)
    }

    /// Where the worker finds the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the worker's network is worse than this machine's. Its gradients and parameters must then
    /// go by TCP: shared memory would bypass the network.
    pub fn is_worse(&self) -> bool {
        self.proxy.is_some()
    }

    /// The words to put before the worker's command, so that it runs behind the link.
    pub fn entrance(&self) -> Vec<String> {
        let entrance = self.link.as_ref().map(ShapedLink::entrance);
        entrance.into_iter().flatten().map(str::to_owned).collect()
    }
}
