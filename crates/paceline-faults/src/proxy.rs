//! A TCP proxy that makes the way between a worker and the server longer, or lossy.
//!
//! What comes in at one end goes out at the other in order and whole, later. Loss is a model, since
//! TCP hides it: a segment is lost with a given probability, comes through a retransmission
//! time-out later (200 ms, doubled each time that it is lost again), and holds up all that was sent
//! after it. There is no fast retransmit and no congestion window, which would shorten some stalls
//! and slow down what follows. Losses are drawn by seed; which bytes they fall on depends on how
//! the bytes come in.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::{Builder, Runtime},
    sync::mpsc::{Receiver, Sender, channel},
    time::{Instant, sleep, sleep_until},
};

/// How bad the way between a worker and the server is, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Path {
    /// Everything takes so much longer.
    pub delay: Duration,
    /// Share of segments that are lost, 0 to below 1.
    pub loss: f64,
}

/// Bytes of a segment, of which each may be lost.
const SEGMENT: usize = 1500;

/// How long TCP waits for an acknowledgement before it sends a segment again: Linux' least, and its
/// most.
const TIMEOUT: Duration = Duration::from_millis(200);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that are read at once, and how many such parcels may be under way on a connection each way:
/// 4 MiB, so a delay bounds the throughput as TCP's window would.
const PARCEL: usize = 64 << 10;
const UNDER_WAY: usize = 64;

/// Who may come, where they are led, and by what way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    /// The address that is listened on; the port is any.
    pub(crate) at: IpAddr,
    /// Whose connections are taken: anybody's who can reach it, or only this address'.
    pub(crate) only: Option<IpAddr>,
    /// Where they lead.
    pub(crate) server: SocketAddr,
    pub(crate) path: Path,
    /// Of what is lost.
    pub(crate) seed: u64,
}

/// Listens and carries bytes on a thread of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Proxy {
    pub(crate) fn start(route: Route) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind((route.at, 0)))?;
        let address = listener.local_addr()?;
        runtime.spawn(serve(listener, route));
        Ok(Proxy { address, runtime: Some(runtime) })
    }

    /// Where the worker finds the server.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(listener: TcpListener, route: Route) {
    for connection in 0.. {
        match listener.accept().await {
            Ok((_, peer)) if route.only.is_some_and(|only| only != peer.ip()) => {
                tracing::warn!("turned away a connection from {peer}");
            }
            Ok((worker, _)) => {
                tokio::spawn(async move {
                    // Either end has gone; dropping what is left tells the other.
                    let _ = carry(worker, route, connection).await;
                });
            }
            Err(error) => {
                tracing::warn!("failed to accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Carries both directions of one connection until both have ended, or either fails.
async fn carry(worker: TcpStream, route: Route, connection: u64) -> io::Result<()> {
    let server = TcpStream::connect(route.server).await?;
    for stream in [&worker, &server] {
        stream.set_nodelay(true)?;
    }
    let (from_worker, to_worker) = worker.into_split();
    let (from_server, to_server) = server.into_split();
    let way = |back: u64| Way::new(route.path, route.seed ^ (((connection << 1) | back) << 20));
    tokio::try_join!(
        one_way(from_worker, to_server, way(0)),
        one_way(from_server, to_worker, way(1))
    )?;
    Ok(())
}

async fn one_way(from: OwnedReadHalf, to: OwnedWriteHalf, way: Way) -> io::Result<()> {
    let (sender, parcels) = channel(UNDER_WAY);
    tokio::try_join!(take(from, sender, way), deliver(parcels, to))?;
    Ok(())
}

/// Bytes, none at the stream's end, and when they are to come out.
struct Parcel {
    bytes: Vec<u8>,
    due: Instant,
}

async fn take(mut from: OwnedReadHalf, parcels: Sender<Parcel>, mut way: Way) -> io::Result<()> {
    let mut last = Instant::now();
    loop {
        let Ok(place) = parcels.reserve().await else { return Ok(()) };
        let mut bytes = Vec::with_capacity(PARCEL);
        from.read_buf(&mut bytes).await?;
        bytes.shrink_to_fit();
        let over = bytes.is_empty();
        let due = last.max(Instant::now() + way.transit(bytes.len()));
        last = due;
        place.send(Parcel { bytes, due });
        if over {
            return Ok(());
        }
    }
}

async fn deliver(mut parcels: Receiver<Parcel>, mut to: OwnedWriteHalf) -> io::Result<()> {
    while let Some(Parcel { bytes, due }) = parcels.recv().await {
        if due > Instant::now() {
            sleep_until(due).await;
        }
        match bytes.is_empty() {
            true => to.shutdown().await?,
            false => to.write_all(&bytes).await?,
        }
    }
    Ok(())
}

/// One direction of one connection.
struct Way {
    path: Path,
    chance: StdRng,
}

impl Way {
    fn new(path: Path, seed: u64) -> Self {
        Way { path, chance: StdRng::seed_from_u64(seed) }
    }

    /// How long bytes that set out together are under way: as long as the last of them.
    fn transit(&mut self, bytes: usize) -> Duration {
        let segments = bytes.div_ceil(SEGMENT).max(1);
        let held_up = (0..segments).map(|_| self.held_up()).max().unwrap_or_default();
        self.path.delay + held_up
    }

    /// How long one segment is held up by being lost.
    fn held_up(&mut self) -> Duration {
        let (mut waited, mut timeout) = (Duration::ZERO, TIMEOUT);
        while self.path.loss > 0.0 && self.chance.random_bool(self.path.loss) {
            waited += timeout;
            timeout = (timeout * 2).min(LONGEST_TIMEOUT);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Ipv4Addr, TcpListener, TcpStream},
        thread,
    };

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Two ends of a connection through a proxy: the worker's and the server's.
    fn ends(path: Path) -> (Proxy, TcpStream, TcpStream) {
        let listener = TcpListener::bind((HOME, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let proxy = Proxy::start(Route { at: HOME, only: None, server, path, seed: 1 }).unwrap();
        let worker = TcpStream::connect(proxy.address()).unwrap();
        let server = listener.accept().unwrap().0;
        for end in [&worker, &server] {
            end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        (proxy, worker, server)
    }

    fn delay(millis: u64) -> Path {
        Path { delay: Duration::from_millis(millis), loss: 0.0 }
    }

    #[test]
    fn a_word_is_under_way_for_at_least_the_delay_each_way() {
        let (_proxy, mut worker, mut server) = ends(delay(60));
        let mut word = [0; 4];
        let began = Instant::now();
        worker.write_all(b"ping").unwrap();
        server.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"ping");
        assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
        server.write_all(b"pong").unwrap();
        worker.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"pong");
        assert!(began.elapsed() >= Duration::from_millis(120), "{:?}", began.elapsed());
    }

    #[test]
    fn more_than_is_under_way_at_once_comes_out_whole_and_in_order_both_ways() {
        let (_proxy, worker, server) = ends(Path { delay: Duration::from_millis(5), loss: 1e-4 });
        let bytes: Vec<u8> = (0..12_000_000u32).map(|i| (i * 7 / 5) as u8).collect();
        let bytes = &bytes;
        thread::scope(|scope| {
            let pairs = [(&worker, &server), (&server, &worker)];
            for (mut from, mut to) in pairs {
                scope.spawn(move || {
                    from.write_all(bytes).unwrap();
                    from.shutdown(std::net::Shutdown::Write).unwrap();
                });
                scope.spawn(move || {
                    let mut came = Vec::new();
                    to.read_to_end(&mut came).unwrap();
                    assert!(came == *bytes, "{} bytes came", came.len());
                });
            }
        });
    }

    #[test]
    fn closing_either_end_closes_the_other() {
        let (_proxy, worker, mut server) = ends(delay(10));
        drop(worker);
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
        let (_proxy, mut worker, server) = ends(delay(10));
        drop(server);
        assert_eq!(worker.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn without_a_server_a_connection_is_closed_and_with_the_proxy_all_are() {
        // A port that is never given out: one that was freed could become the proxy's own.
        let server = (HOME, 1).into();
        let route = Route { at: HOME, only: None, server, path: delay(0), seed: 1 };
        let proxy = Proxy::start(route).unwrap();
        let mut worker = TcpStream::connect(proxy.address()).unwrap();
        assert!(matches!(worker.read(&mut [0]), Ok(0) | Err(_)));
        let (proxy, mut worker, _server) = ends(delay(0));
        drop(proxy);
        assert!(matches!(worker.read(&mut [0]), Ok(0) | Err(_)));
    }

    #[test]
    fn strangers_are_turned_away() {
        let listener = TcpListener::bind((HOME, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let only = Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9)));
        let route = Route { at: HOME, only, server, path: delay(0), seed: 1 };
        let proxy = Proxy::start(route).unwrap();
        let mut stranger = TcpStream::connect(proxy.address()).unwrap();
        assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)));
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn loss_costs_a_time_out_as_often_as_stated_and_doubles_on_repeats() {
        let mut way = Way::new(Path { delay: Duration::ZERO, loss: 0.2 }, 7);
        let draws: Vec<Duration> = (0..50_000).map(|_| way.transit(SEGMENT)).collect();
        let share = |wanted: u64| {
            let wanted = Duration::from_millis(wanted);
            draws.iter().filter(|time| **time == wanted).count() as f64 / 50_000.0
        };
        for (millis, expected) in [(0, 0.8), (200, 0.16), (600, 0.032), (1400, 0.0064)] {
            assert!((share(millis) - expected).abs() < 0.01, "{millis} ms: {}", share(millis));
        }
        let mut again = Way::new(Path { delay: Duration::ZERO, loss: 0.2 }, 7);
        assert!(draws.iter().all(|time| again.transit(1) == *time));
        // Ten segments, of which any may be lost.
        let spared = (0..20_000).filter(|_| again.transit(10 * SEGMENT) == Duration::ZERO).count();
        assert!((spared as f64 / 20_000.0 - 0.8f64.powi(10)).abs() < 0.01, "{spared}");
    }
}
