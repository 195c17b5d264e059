//! Shards in processes of their own (here: threads with runtimes of their own), over loopback.

mod common;

use std::{
    net::SocketAddr,
    path::Path,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use common::{Server, config, names, rogue::Line, start};
use paceline_core::{EventKind, StopReason};
use paceline_params::{OptimizerSpec, WireType, checkpoint};
use paceline_server::{
    CheckpointConfig, Outcome, ServerConfig, ServerError, ShardConfig, Start, serve_shard,
};
use paceline_wire::{
    Transport,
    message::{FromShard, Reply, Role, ToShard},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

/// A shard that calls the coordinator, until it is told to stop or killed.
struct Shard {
    thread: JoinHandle<Option<Result<(), ServerError>>>,
    kill: oneshot::Sender<()>,
}

impl Shard {
    fn start(coordinator: SocketAddr, index: u32, of: u32) -> Shard {
        Self::spawn(move || call(coordinator, index, of))
    }

    /// Calls again as long as somebody else has its place.
    fn insist(coordinator: SocketAddr, index: u32, of: u32) -> Shard {
        Self::spawn(move || async move {
            loop {
                match call(coordinator, index, of).await {
                    Err(error) if error.to_string().ends_with("is already there") => {}
                    outcome => return outcome,
                }
            }
        })
    }

    fn spawn<F: Future<Output = Result<(), ServerError>>>(
        serve: impl FnOnce() -> F + Send + 'static,
    ) -> Shard {
        let (kill, killed) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                tokio::select! {
                    outcome = serve() => Some(outcome),
                    Ok(()) = killed => None,
                }
            })
        });
        Shard { thread, kill }
    }

    fn kill(self) {
        self.kill.send(()).unwrap();
        assert!(self.thread.join().unwrap().is_none(), "it had ended by itself");
    }

    fn join(self) -> Result<(), ServerError> {
        self.thread.join().unwrap().expect("it was not killed")
    }
}

async fn call(coordinator: SocketAddr, index: u32, of: u32) -> Result<(), ServerError> {
    let stream = TcpStream::connect(coordinator).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    serve_shard(ShardConfig { index, of, address, token: None, faults: None }, stream, listener)
        .await
}

fn exact(shards: u32, remote: bool) -> ServerConfig {
    let mut config = config(3);
    config.deterministic = true;
    config.update.optimizer = OptimizerSpec::ADAMW.into();
    config.placement.shards = shards;
    config.placement.remote = remote;
    config
}

fn run(config: ServerConfig) -> Outcome {
    let (count, remote) = (config.placement.shards, config.placement.remote);
    let server = Server::start(config, start());
    // The last calls first, and workers call before there is anything to work on.
    let workers: Vec<_> = (0..3).map(|wish| server.worker(wish)).collect();
    let indices = (0..count).rev().filter(|_| remote);
    let shards: Vec<_> = indices.map(|index| Shard::start(server.address, index, count)).collect();
    let outcome = server.join().0.unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    for shard in shards {
        shard.join().unwrap();
    }
    assert_eq!(outcome.reason, StopReason::Rounds);
    assert!(outcome.ledger.balanced);
    outcome
}

#[test]
fn the_same_bits_come_out_wherever_the_shards_are_and_however_many() {
    let here = run(exact(2, false)).param_hash.unwrap();
    assert_eq!(here, run(exact(2, true)).param_hash.unwrap());
    assert_eq!(here, run(exact(3, true)).param_hash.unwrap());
    assert_eq!(here, run(exact(1, true)).param_hash.unwrap());
}

#[test]
fn values_travel_as_halves_to_shards_elsewhere_as_they_do_to_those_here() {
    let transport = Transport::Tcp;
    let whole = run(ServerConfig { transport, ..exact(2, false) });
    for wire in WireType::ALL {
        let travelling = |shards, remote| ServerConfig { wire, transport, ..exact(shards, remote) };
        let (here, there) = (run(travelling(2, false)), run(travelling(3, true)));
        assert_eq!(here.param_hash, there.param_hash, "{wire}");
        let bytes = |outcome: &Outcome| -> u64 {
            outcome.shards.iter().map(|shard| shard.counts.bytes_out).sum()
        };
        // In 40 rounds 3 workers pull 8 blocks, or 9 of 3 shards, each with 24 bytes before its values.
        let heads = |blocks: u64| 40 * 3 * blocks * 24;
        let values = (bytes(&whole) - heads(8)) * wire.size() as u64 / 4;
        assert_eq!((bytes(&here), bytes(&there)), (heads(8) + values, heads(9) + values), "{wire}");
    }
}

#[test]
fn a_shard_that_does_not_fit_is_refused_and_told_why() {
    let server = Server::start(exact(2, true), start());
    let refused = |index, of| {
        let outcome = Shard::start(server.address, index, of).join();
        outcome.unwrap_err().to_string()
    };
    assert_eq!(refused(1, 3), "refused: this run has 2 shards, not 3");
    assert_eq!(refused(2, 2), "refused: there is no shard 2 of 2");
    assert_eq!(refused(u32::MAX, 2), "refused: there is no shard 4294967295 of 2");
    let role = Role::Shard { index: 0, of: 2, address: ":0".to_owned() };
    let mut first = Line::hello(server.address, "", role);
    assert_eq!(first.hear::<Reply<()>>(), Reply::Welcome(()));
    assert_eq!(refused(0, 2), "refused: shard 0 is already there");

    // It goes before the run begins; another takes its place.
    drop(first);
    let shards = [Shard::insist(server.address, 0, 2), Shard::start(server.address, 1, 2)];
    server.wait_for(|event| matches!(event, EventKind::RunStarted { .. }));
    assert_eq!(refused(1, 2), "refused: all shards are there already");
    let workers: Vec<_> = (0..3).map(|wish| server.worker(wish)).collect();
    let (outcome, events) = server.join();
    assert_eq!(outcome.unwrap().rounds, 40);
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    assert!(events.iter().any(|event| names(&event.kind, "this run has 2 shards, not 3")));
    for shard in shards {
        shard.join().unwrap();
    }
}

#[test]
fn a_shard_that_falls_silent_ends_the_run_and_is_named() {
    let mut config = exact(1, true);
    config.liveness = Duration::from_millis(300);
    let server = Server::start(config, start());
    let role = Role::Shard { index: 0, of: 1, address: ":0".to_owned() };
    let mut shard = Line::hello(server.address, "", role);
    assert_eq!(shard.hear::<Reply<()>>(), Reply::Welcome(()));
    assert!(matches!(shard.hear(), ToShard::Init(_)));
    shard.say(&FromShard::Ready);
    server.wait_for(|event| matches!(event, EventKind::Stopped { .. }));
    drop(shard);
    let StopReason::Failed(what) = server.join().0.unwrap().reason else { panic!("no failure") };
    assert!(what.starts_with("shard 0 was silent for "), "{what}");
}

fn checkpointed(dir: &Path) -> ServerConfig {
    let mut config = exact(3, true);
    config.limits.rounds = None;
    config.checkpoints = Some(CheckpointConfig { dir: dir.to_owned(), every: 5, keep: 100 });
    config
}

#[test]
fn a_shard_that_dies_ends_the_run_at_once_and_the_checkpoints_stay_good() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(checkpointed(dir.path()), start());
    let mut shards: Vec<_> = (0..3).map(|i| Shard::start(server.address, i, 3)).collect();
    let workers: Vec<_> = (0..3).map(|wish| server.worker(wish)).collect();
    server.wait_for(|event| matches!(event, EventKind::Checkpointed { .. }));
    let killed = Instant::now();
    shards.remove(1).kill();
    let (outcome, events) = server.join();
    let outcome = outcome.unwrap();
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    let StopReason::Failed(what) = &outcome.reason else { panic!("{:?}", outcome.reason) };
    assert!(what.starts_with("shard 1 at 127.0.0.1:"), "{what}");
    for worker in workers {
        // Told of the end, or of the shard's; whichever came first.
        let _ = worker.join().unwrap();
    }
    for shard in shards {
        shard.join().unwrap();
    }

    let said: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Checkpointed { path, .. } => Some(path.clone()),
            _ => None,
        })
        .collect();
    for path in &said {
        checkpoint::verify(path).unwrap();
    }
    let latest = checkpoint::latest(dir.path()).unwrap().unwrap().path;
    assert_eq!(Some(&latest), said.last());
    let (start, _) = Start::resume(checkpoint::read(&latest).unwrap()).unwrap();
    assert!(start.version <= outcome.version);
}
