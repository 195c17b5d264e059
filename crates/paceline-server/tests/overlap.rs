//! Gradients that leave block by block while the user's loop still computes, over TCP.

mod common;

use std::{
    io::{self, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use common::{LIMIT, SAMPLES, Server, config};
use paceline_core::{EventKind, Straggler, Version};
use paceline_params::{FlatVec, Half, OptimizerSpec, TensorSpec, WireType};
use paceline_policy::wait_for_answers;
use paceline_server::{ServerConfig, Start};
use paceline_wire::{Connect, Connection, Transport};
use paceline_worker::{Embedded, Joining, Turn, WorkerConfig};

/// Half of what leaves in one go.
const BLOCK: usize = 1 << 17;
/// Blocks of a shard: enough that some leave early.
const BLOCKS: usize = 4;
const SHARDS: usize = 2;
const PARAMS: usize = SHARDS * BLOCKS * BLOCK;
const SHARD: usize = PARAMS / SHARDS;

fn averaging(workers: usize, policy: &str) -> ServerConfig {
    let mut config = config(workers);
    config.update.optimizer = OptimizerSpec::Mean.into();
    config.policy = policy.parse().unwrap();
    config.placement.block_elems = BLOCK;
    config.limits.rounds = Some(1);
    config
}

fn start() -> Start {
    Start {
        tensors: vec![TensorSpec::new("a", [PARAMS])],
        params: FlatVec::from(vec![0.0; PARAMS]),
        ..common::start()
    }
}

/// The bytes that a worker has sent to each server, control connection first, and the most that may be sent.
#[derive(Default)]
struct Meter {
    sent: Mutex<Vec<usize>>,
    more: Condvar,
}

impl Meter {
    /// Waits until the shard with this number was sent at least `bytes` bytes.
    #[track_caller]
    fn wait_for(&self, shard: usize, bytes: usize) {
        let sent = self.sent.lock().unwrap();
        let waits = |sent: &mut Vec<usize>| sent[1 + shard] < bytes;
        let (sent, waited) = self.more.wait_timeout_while(sent, LIMIT, waits).unwrap();
        assert!(!waited.timed_out(), "shard {shard} was sent {sent:?} of {bytes} bytes");
    }

    fn sent(&self, shard: usize) -> usize {
        self.sent.lock().unwrap()[1 + shard]
    }
}

/// TCP whose bytes are counted. The data connections fail after `limit` bytes.
struct Metered {
    meter: Arc<Meter>,
    limit: usize,
}

impl Connect for Metered {
    fn connect(&self, address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut sent = self.meter.sent.lock().unwrap();
        sent.push(0);
        let limit = if sent.len() == 1 { usize::MAX } else { self.limit };
        let (meter, index) = (Arc::clone(&self.meter), sent.len() - 1);
        let writer = MeteredWriter { stream: stream.try_clone()?, meter, index, limit };
        Ok((Box::new(stream), Box::new(writer)))
    }
}

struct MeteredWriter {
    stream: TcpStream,
    meter: Arc<Meter>,
    index: usize,
    limit: usize,
}

impl Write for MeteredWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.meter.sent.lock().unwrap()[self.index] >= self.limit {
            self.stream.shutdown(Shutdown::Both)?;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let written = self.stream.write(bytes)?;
        self.meter.sent.lock().unwrap()[self.index] += written;
        self.meter.more.notify_all();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

struct Loop {
    worker: Embedded,
    meter: Arc<Meter>,
}

impl Loop {
    fn join(server: &Server, number: u32, clears: bool) -> Loop {
        Self::join_for(server, number, clears, usize::MAX)
    }

    fn join_for(server: &Server, number: u32, clears: bool, limit: usize) -> Loop {
        let config = WorkerConfig {
            wish: Some(number),
            name: format!("loop {number}"),
            transport: Transport::Tcp,
            ..server.worker_config()
        };
        let meter = Arc::new(Meter::default());
        let connect = Box::new(Metered { meter: Arc::clone(&meter), limit });
        let worker = Embedded::join(config, connect, wait_for_answers).unwrap();
        worker.ready(Joining { version: Version(0), samples: Some(SAMPLES), ahead: 0, clears });
        Loop { worker, meter }
    }

    /// Takes versions until there is work, and begins it.
    #[track_caller]
    fn begin(&self, parts: u32) -> Version {
        loop {
            match self.worker.next(LIMIT) {
                Turn::Work(work) if self.worker.begin(parts) => return work.base,
                Turn::Work(_) => {}
                Turn::Loaded(_) => drop(self.worker.take(|_, _| ())),
                turn => panic!("{turn:?}"),
            }
        }
    }

    /// Writes these elements, the last block first, as a backward pass does.
    fn write(&self, values: &[f32], from: usize) {
        for at in (from..PARAMS).step_by(BLOCK).rev() {
            self.worker.write(at, &values[at..at + BLOCK], 8.0);
        }
    }

    /// Writes all but the first block of each shard, and waits until some of it has left.
    #[track_caller]
    fn write_most(&self, values: &[f32]) {
        let before = [0, 1].map(|shard| self.meter.sent(shard));
        for shard in (0..SHARDS).rev() {
            for at in (shard * SHARD + BLOCK..(shard + 1) * SHARD).step_by(BLOCK).rev() {
                assert_eq!(self.worker.write(at, &values[at..at + BLOCK], 8.0), Some(true));
            }
            self.meter.wait_for(shard, before[shard] + 2 * 2 * BLOCK);
        }
    }

    /// Writes what [`Self::write_most`] has left out.
    fn write_rest(&self, values: &[f32]) {
        for at in [0, SHARD] {
            self.worker.write(at, &values[at..at + BLOCK], 8.0);
        }
    }

    /// Finishes the contribution, whose values are all written.
    fn finish(&self) {
        self.worker.finish(8.0, None, Vec::new());
        self.worker.forget();
    }

    fn compute(&self, values: &[f32]) {
        self.write(values, 0);
        self.finish();
    }

    fn contribute(&self, values: &[f32]) {
        self.begin(1);
        self.compute(values);
    }

    /// Waits for the next mean.
    #[track_caller]
    fn mean(&self) -> Vec<f32> {
        assert!(matches!(self.worker.next_version(LIMIT), Turn::Loaded(_)));
        self.worker.take(|_, values| values.to_vec()).unwrap()
    }
}

/// Values of a gradient, which differ by worker and round.
fn values(worker: u32, round: u64) -> Vec<f32> {
    let seed = 1 + u64::from(worker) + 10 * round;
    let value = |at: u64| {
        let bits = (at + 1).wrapping_mul(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (bits >> 40) as f32 / 1e5 - 80.0
    };
    (0..PARAMS as u64).map(value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The mean of one worker's round in `parts` micro-batches, and the bytes that it sent to each shard.
fn alone(
    config: ServerConfig,
    parts: u32,
    clears: bool,
    compute: impl FnOnce(&Loop),
) -> (Vec<f32>, [usize; 2]) {
    let server = Server::start(config, start());
    let each = Loop::join(&server, 0, clears);
    each.begin(parts);
    let before = [0, 1].map(|shard| each.meter.sent(shard));
    compute(&each);
    let mean = each.mean();
    let sent = [0, 1].map(|shard| each.meter.sent(shard) - before[shard]);
    drop(each);
    server.join().0.unwrap();
    (mean, sent)
}

#[test]
fn blocks_leave_before_the_last_gradient_is_written_and_none_leaves_twice() {
    for wire in [WireType::F32, WireType::Half(Half::Bf16)] {
        let config = || ServerConfig { wire, ..averaging(1, "full") };
        let gradient = values(0, 0);
        let whole = alone(config(), 1, true, |each| each.compute(&gradient));
        let early = alone(config(), 1, false, |each| {
            each.write_most(&gradient);
            each.write_rest(&gradient);
            each.finish();
        });
        assert_eq!(bits(&early.0), bits(&whole.0), "{wire}");
        assert_eq!(early.1, whole.1, "{wire}");
    }
}

#[test]
fn of_several_micro_batches_that_add_up_only_the_last_leaves_early() {
    let mut config = averaging(1, "full");
    config.round.straggler = Straggler::Abort;
    let (first, last) = (values(0, 0), values(1, 0));
    let overlapped = |each: &Loop| {
        let sent = each.meter.sent(1);
        each.write(&first, 0);
        assert!(each.worker.finish(4.0, None, Vec::new()));
        assert_eq!(each.meter.sent(1), sent, "the first part is not final");
        each.write_most(&last);
        each.write_rest(&last);
        each.worker.finish(4.0, None, Vec::new());
        each.worker.forget();
    };
    let plain = |each: &Loop| {
        for part in [&first, &last] {
            each.write(part, 0);
            each.worker.finish(4.0, None, Vec::new());
        }
        each.worker.forget();
    };
    let early = alone(config.clone(), 2, false, overlapped);
    assert_eq!(bits(&early.0), bits(&alone(config, 2, true, plain).0));
}

#[test]
fn a_pass_that_was_left_in_the_middle_is_replaced_by_the_next() {
    let (lost, gradient) = (vec![1e6; PARAMS], values(0, 0));
    let whole = alone(averaging(1, "full"), 1, true, |each| each.compute(&gradient));
    let again = alone(averaging(1, "full"), 1, false, |each| {
        each.write_most(&lost);
        each.worker.restart();
        each.compute(&gradient);
    });
    assert_eq!(bits(&again.0), bits(&whole.0));
}

#[test]
fn what_was_removed_again_has_not_left() {
    let gradient = values(0, 0);
    let (mean, _) = alone(averaging(1, "full"), 1, true, |each| {
        each.write(&gradient, 0);
        each.worker.clear(0, SHARD);
        each.finish();
    });
    assert!(mean[..SHARD].iter().all(|value| *value == 0.0));
    assert_eq!(mean[SHARD..].iter().filter(|value| **value == 0.0).count(), 0);
}

/// Two rounds of three workers, of which two are waited for. The third is cut in the middle of the first
/// backward pass, and is in time in the second round.
fn cut_in_the_middle(straggler: Straggler, clears: bool) -> [Vec<f32>; 2] {
    let mut config = averaging(3, "static:2");
    config.round.straggler = straggler;
    config.limits.rounds = Some(2);
    let server = Server::start(config, start());
    let workers: Vec<Loop> = (0..3).map(|number| Loop::join(&server, number, clears)).collect();
    let cut = &workers[2];
    let (base, poison) = (cut.begin(1), vec![1e9; PARAMS]);
    if clears {
        cut.write(&poison, BLOCK);
    } else {
        cut.write_most(&poison);
    }
    for (number, worker) in (0..).zip(&workers[..2]) {
        worker.contribute(&values(number, 0));
    }
    server.wait_for(|event| matches!(event, EventKind::Aborted { worker, .. } if worker.0 == 2));
    let first = cut.mean();
    assert!(cut.worker.is_cut());
    assert_eq!(cut.worker.write(0, &poison[..BLOCK], 1.0), None);
    cut.worker.forget();
    // Its next contribution is the next round's, in which another worker is not waited for.
    assert_eq!(cut.begin(1), base.next());
    let next = values(2, 1);
    if clears {
        cut.write(&next, 0);
    } else {
        cut.write_most(&next);
        cut.write_rest(&next);
    }
    cut.finish();
    workers[0].contribute(&values(0, 1));
    let second = cut.mean();
    drop(workers);
    server.join().0.unwrap();
    [first, second]
}

#[test]
fn a_cut_in_the_middle_of_a_pass_leaves_nothing_in_this_sum_or_the_next() {
    for straggler in [Straggler::Abort, Straggler::Salvage] {
        let early = cut_in_the_middle(straggler, false).map(|mean| bits(&mean));
        let whole = cut_in_the_middle(straggler, true).map(|mean| bits(&mean));
        assert!(early == whole, "{straggler}: the means differ");
        let both = [values(0, 0), values(1, 0)];
        let mean = |at: usize| (8.0 * both[0][at] + 8.0 * both[1][at]) / 16.0;
        for at in [0, BLOCK, SHARD - 1, PARAMS - 1] {
            assert!((f32::from_bits(early[0][at]) - mean(at)).abs() < 1e-3, "element {at}");
        }
    }
}

#[test]
fn a_shard_that_is_lost_in_the_middle_of_a_pass_ends_the_worker() {
    let mut config = averaging(1, "full");
    config.round.quorum_grace = Duration::from_millis(1);
    let server = Server::start(config, start());
    let each = Loop::join_for(&server, 0, false, BLOCK);
    each.begin(1);
    each.write(&values(0, 0), BLOCK);
    // The pass is not over, and its next write learns of the loss.
    let ended = std::iter::repeat_with(|| each.worker.next_version(LIMIT)).next();
    assert!(matches!(ended, Some(Turn::Ended(Err(_)))), "{ended:?}");
    assert_eq!(each.worker.write(0, &vec![1.0; BLOCK], 1.0), None);
    drop(each);
    let (_, events) = server.join();
    assert!(events.iter().any(|event| matches!(event.kind, EventKind::WorkerLeft { .. })));
}
