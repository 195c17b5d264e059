//! Workers that share memory with the shards: the same results as over TCP, and no way to do harm.

mod common;

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use common::{
    LIMIT, PARAMS, Quadratic, RATE, Server, attacked, check_descent, config, endless, names,
    rogue::{Line, ROGUE, Rogue},
    start, wait_for_rounds,
};
use paceline_core::{EventKind, Late, LeaveReason, Straggler, Version, WorkerId};
use paceline_policy::wait_for_answers;
use paceline_server::{Outcome, ServerConfig, Start};
use paceline_shm::{HandoverClient, Register, Segment};
use paceline_wire::{
    Connect, Connection, Tcp, Transport,
    message::{FromData, Invitation, Job, Reply, Role, SEGMENTS, ToData},
};
use paceline_worker::{Compute, Kept, WorkerConfig};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// TCP that counts the bytes which go over it.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU64>);

struct Counting<S>(S, Arc<AtomicU64>);

impl Connect for Counted {
    fn connect(&self, address: &str) -> io::Result<Connection> {
        let (read, write) = Tcp.connect(address)?;
        let count = || Arc::clone(&self.0);
        Ok((Box::new(Counting(read, count())), Box::new(Counting(write, count()))))
    }
}

impl<S: Read> Read for Counting<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(bytes)?;
        self.1.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl<S: Write> Write for Counting<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.1.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Trains with three workers; returns how it ended and how many bytes went over TCP.
fn train(config: ServerConfig, workers: [Transport; 3]) -> (Outcome, u64) {
    let server = Server::start(config, start());
    let counted = Counted::default();
    let workers = [0, 1, 2].map(|wish| {
        let config = WorkerConfig {
            address: server.address.to_string(),
            wish: Some(wish),
            transport: workers[wish as usize],
            ..WorkerConfig::default()
        };
        let connect = counted.clone();
        let prepare = |_: &Job| Ok((Box::new(Quadratic::new()) as Box<_>, common::SAMPLES));
        thread::spawn(move || {
            paceline_worker::run(&config, &connect, wait_for_answers, prepare).unwrap()
        })
    });
    let outcome = server.join().0.unwrap();
    for worker in workers {
        worker.join().unwrap();
    }
    assert!(outcome.ledger.balanced);
    (outcome, counted.0.load(Ordering::Relaxed))
}

fn exact(transport: Transport) -> ServerConfig {
    let mut config = config(3);
    config.deterministic = true;
    config.transport = transport;
    config
}

#[test]
fn the_same_bits_come_out_by_memory_by_tcp_and_by_both() {
    use Transport::{Auto, Tcp};
    let (by_memory, few) = train(exact(Auto), [Auto; 3]);
    let (server_tcp, many) = train(exact(Tcp), [Auto; 3]);
    let (workers_tcp, as_many) = train(exact(Auto), [Tcp; 3]);
    let (mixed, some) = train(exact(Auto), [Tcp, Auto, Tcp]);
    let halves = ServerConfig { wire: "bf16".parse().unwrap(), ..exact(Auto) };
    let (halves, as_few) = train(halves, [Auto; 3]);
    assert!(by_memory.param_hash.is_some());
    // Halves are for travelling, so what does not travel has the bits of f32.
    for outcome in [server_tcp, workers_tcp, mixed, halves] {
        assert_eq!(outcome.param_hash, by_memory.param_hash);
    }
    // 40 rounds of 3 workers, the parameters one way and a gradient the other.
    let all = 40 * 3 * 2 * (PARAMS * size_of::<f32>()) as u64;
    assert!(many > all && as_many > all, "{many} and {as_many} of {all} bytes");
    assert!(few < all / 4 && few < some && some < all, "{few} and {some} of {all} bytes");
    assert!(as_few < all / 4, "{as_few} of {all} bytes");
}

/// As [`Quadratic`], from where the parameters are.
struct InPlace {
    kept: Option<Kept>,
    copied: Quadratic,
    /// Rounds in which nothing was copied.
    rounds: Arc<AtomicU64>,
}

impl Compute for InPlace {
    fn load(&mut self, at: usize, params: &[f32]) {
        self.copied.load(at, params);
    }

    fn keep(&mut self, params: Kept) {
        self.kept = Some(params);
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    fn let_go(&mut self) {
        self.kept = None;
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        let Some(params) = &self.kept else { return self.copied.gradient(samples, gradient) };
        for (g, p) in gradient.iter_mut().zip(&params[..]) {
            *g += samples.len() as f32 * (p - 1.0);
        }
        samples.len() as f64
    }
}

#[test]
fn parameters_are_computed_from_where_they_are_published() {
    // One shard; and two that have a part of whole pages, and of any length.
    for (shards, params, policy) in
        [(1, PARAMS, "full"), (2, 33 * 1024 + 7, "full"), (2, 33 * 1024 + 7, "static:2")]
    {
        let mut config = exact(Transport::Auto);
        config.deterministic = policy == "full";
        config.policy = policy.parse().unwrap();
        config.placement.shards = shards;
        config.placement.block_elems = 1 << 20;
        let tensors = vec![paceline_params::TensorSpec::new("w", [params])];
        let start = Start { tensors, params: vec![0.0; params].into(), ..start() };
        let rounds = Arc::new(AtomicU64::new(0));
        let run = |transport| {
            let config = ServerConfig { transport, ..config.clone() };
            let server = Server::start(config, start.clone());
            let workers = [0, 1, 2].map(|number| {
                let (kept, copied, rounds) = (None, Quadratic::new(), rounds.clone());
                let compute =
                    move || -> Box<dyn Compute> { Box::new(InPlace { kept, copied, rounds }) };
                server.worker_with(number, "", compute)
            });
            let outcome = server.join().0.unwrap();
            for worker in workers {
                worker.join().unwrap().unwrap();
            }
            outcome
        };
        let copied = run(Transport::Tcp);
        assert_eq!(rounds.load(Ordering::Relaxed), 0);
        let kept = run(Transport::Auto);
        assert_eq!(kept.param_hash, copied.param_hash);
        let rounds = rounds.load(Ordering::Relaxed);
        match policy {
            "full" => assert_eq!(rounds, 3 * 40),
            // Who is left behind keeps an old version; there is a segment for that.
            _ => assert!(rounds > 2 * 40 / 2, "{rounds} of about 80"),
        }
    }
}

#[test]
fn salvage_late_folds_and_stale_rounds_go_by_memory_too() {
    for (policy, straggler) in [
        ("static:2", Straggler::Salvage),
        ("static:2", Straggler::Abort),
        ("static:2", Straggler::Finish),
        ("async", Straggler::Finish),
        ("stale:2", Straggler::Finish),
    ] {
        let mut config = config(3);
        config.policy = policy.parse().unwrap();
        config.round.straggler = straggler;
        if policy == "static:2" && straggler == Straggler::Finish {
            config.round.late = Late::Fold;
        }
        config.limits.rounds = Some(150);
        let (outcome, bytes) = train(config, [Transport::Auto; 3]);
        let all = 150 * 2 * 2 * (PARAMS * size_of::<f32>()) as u64;
        assert!(bytes < all / 2, "{policy}: {bytes} of {all} bytes");
        assert!(outcome.loss.is_none_or(f64::is_finite), "{policy}");
    }
}

/// Segments as they must be, for this worker's gradient.
fn segments() -> Vec<Segment> {
    (0..SEGMENTS).map(|_| Segment::new(PARAMS).unwrap()).collect()
}

/// Sends these and a register to every shard, or until one shows it out.
fn share(rogue: &mut Rogue, files: &[BorrowedFd<'_>]) {
    let register = Register::new().unwrap();
    hand_over(rogue, &[files, &[register.as_fd()]].concat());
}

/// Sends these to every shard, or until one shows it out; returns the connections, still open.
fn hand_over(rogue: &mut Rogue, files: &[BorrowedFd<'_>]) -> Vec<HandoverClient> {
    let mut clients = Vec::new();
    for (invitation, line) in rogue.invitations.iter().zip(&mut rogue.data) {
        let client = HandoverClient::connect(&invitation.as_ref().unwrap().listener).unwrap();
        client.send(rogue.job.session, files).unwrap();
        line.say(&ToData::Memory);
        if client.receive(LIMIT).is_err() {
            break;
        }
        clients.push(client);
    }
    clients
}

fn push(rogue: &mut Rogue, base: Version, segment: u32) {
    let id = rogue.id(base);
    for line in &mut rogue.data {
        line.say(&ToData::Push { id, segment });
    }
}

fn memory(bytes: u64, seals: SealFlags) -> std::os::fd::OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("rogue", flags).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

const LONG_ENOUGH: u64 = 4096 + 4 * PARAMS as u64;

/// What the server must say of it, and the misdeed.
type Misdeed = (&'static str, fn(&mut Rogue));

const MISDEEDS: &[Misdeed] = &[
    ("it did not come to where memory is shared", |rogue| rogue.data[0].say(&ToData::Memory)),
    ("it did not come to where memory is shared", |rogue| {
        let listener = &rogue.invitations[0].as_ref().unwrap().listener;
        let client = HandoverClient::connect(listener).unwrap();
        client.send(rogue.job.session ^ 1, &[]).unwrap();
        rogue.data[0].say(&ToData::Memory);
    }),
    ("it brings 1 files, not 3 segments and a register", |rogue| share(rogue, &[])),
    ("it brings 3 files, not 3 segments and a register", |rogue| {
        let segments = segments();
        share(rogue, &[segments[0].as_fd(), segments[1].as_fd()]);
    }),
    ("its register cannot be used: it has 4100 bytes where 4096 are needed", |rogue| {
        let (good, long) = (segments(), Segment::new(1).unwrap());
        hand_over(rogue, &[good[0].as_fd(), good[1].as_fd(), good[2].as_fd(), long.as_fd()]);
    }),
    ("its segment 1 cannot be used: it has 8092 bytes where 8096 are needed", |rogue| {
        let (good, short) = (segments(), Segment::new(PARAMS - 1).unwrap());
        share(rogue, &[good[0].as_fd(), short.as_fd(), good[2].as_fd()]);
    }),
    ("its segment 0 cannot be used: it is not sealed against becoming shorter", |rogue| {
        let file = memory(LONG_ENOUGH, SealFlags::GROW | SealFlags::SEAL);
        share(rogue, &[file.as_fd(); 3]);
        // Not that it could still be mapped by anybody.
        ftruncate(&file, 0).unwrap();
    }),
    ("its segment 0 cannot be used: it is not sealed against writers", |rogue| {
        let file = memory(LONG_ENOUGH, SealFlags::SHRINK | SealFlags::GROW);
        share(rogue, &[file.as_fd(); 3]);
    }),
    ("its segment 0 cannot be used: 0 of its bytes have memory where 8096 are needed", |rogue| {
        let file = memory(LONG_ENOUGH, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
        share(rogue, &[file.as_fd(); 3]);
    }),
    ("its segment 0 cannot be used: it is no memory that can be shared", |rogue| {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        share(rogue, &[file.as_fd(); 3]);
    }),
    ("it shares memory though it was not invited to", |rogue| {
        let segments = segments();
        let files: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
        share(rogue, &files);
        rogue.data[0].say(&ToData::Memory);
    }),
    ("it shares memory though it was not invited to", |rogue| {
        let (base, _) = rogue.ready();
        push(rogue, base, 0);
    }),
    ("a gradient in segment 3, which it does not share", |rogue| {
        let segments = segments();
        let files: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
        share(rogue, &files);
        let (base, _) = rogue.ready();
        push(rogue, base, 3);
    }),
    ("a gradient in shared memory came inside contribution", |rogue| {
        let segments = segments();
        let files: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
        share(rogue, &files);
        let (base, _) = rogue.ready();
        rogue.push_block(base, &[0.0; PARAMS], 0);
        let id = rogue.id(base);
        rogue.data[0].say(&ToData::Push { id, segment: 0 });
    }),
    (" came after c", |rogue| {
        let segments = segments();
        let files: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
        share(rogue, &files);
        let (base, _) = rogue.ready();
        push(rogue, base, 0);
        push(rogue, base, 1);
    }),
];

#[test]
fn a_worker_that_lies_about_its_memory_is_named_and_shown_out() {
    attacked(endless(), |server| {
        for (said, misdeed) in MISDEEDS {
            let mut rogue = Rogue::join(server.address);
            assert_eq!(rogue.job.worker.0, ROGUE, "the one before is gone: {said}");
            misdeed(&mut rogue);
            server.wait_for(|event| names(event, said));
            rogue.ends();
        }
    });
}

#[test]
fn memory_is_shared_with_nobody_who_is_not_let_in() {
    let mut config = endless();
    config.token = Some("open sesame".to_owned());
    let server = Server::start(config, start());
    let role = Role::Data { worker: WorkerId(0), session: 1, shard: 0 };
    let mut stranger = Line::hello(server.address, "", role);
    assert!(matches!(stranger.hear(), Reply::<Option<Invitation>>::Refused(_)));
}

#[test]
fn what_is_not_finite_when_it_is_folded_spoils_nothing_but_itself() {
    // It is so from the beginning, or it is changed after it was pushed.
    for late in [false, true] {
        let mut server = Server::start(endless(), start());
        let honest = [server.worker(0), server.worker(1)];
        wait_for_rounds(&server, 1);
        let mut rogue = Rogue::join(server.address);
        let mut segments = segments();
        let files: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
        share(&mut rogue, &files);
        let (base, samples) = rogue.ready();
        if !late {
            segments[0].fill(f32::NAN);
        }
        push(&mut rogue, base, 0);
        // A pull is answered after the push before it was heard.
        rogue.pull(base);
        segments[0].fill(f32::NAN);
        rogue.done(base, f64::from(samples), 1.0);
        server.wait_for(|event| names(event, "is not finite at element"));
        rogue.ends();
        wait_for_rounds(&server, 2);
        server.interrupt();
        let (outcome, events) = server.join();
        for worker in honest {
            worker.join().unwrap().unwrap();
        }
        outcome.unwrap();
        // The mean is that of the others, with their weight.
        check_descent(&events, f64::from(RATE));
    }
}

#[test]
fn what_a_worker_that_died_had_pushed_is_folded_or_dropped_and_the_rounds_go_on() {
    let deaths: [fn(&mut Rogue); 2] =
        [|rogue| rogue.data[0].close(), |rogue| rogue.control.close()];
    attacked(endless(), |server| {
        for death in deaths {
            let mut rogue = Rogue::join(server.address);
            let segments = segments();
            let files: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
            share(&mut rogue, &files);
            let (base, _) = rogue.ready();
            // It never says how much it weighs.
            push(&mut rogue, base, 0);
            death(&mut rogue);
            drop(segments);
            server.wait_for(|event| {
                matches!(event, EventKind::WorkerLeft { worker, why }
                    if worker.0 == ROGUE && !matches!(why, LeaveReason::Misbehaved(_)))
            });
            rogue.ends();
        }
    });
}

#[test]
fn whoever_never_lets_go_of_what_is_published_holds_nobody_up() {
    attacked(endless(), |server| {
        // All four segments are kept, of which one is the newest.
        let keep = |kept| {
            let mut rogue = Rogue::join(server.address);
            let (mut register, segments) = (Segment::new(0).unwrap(), segments());
            register.publish(kept);
            let files = segments.iter().chain([&register]).map(AsFd::as_fd);
            let clients = hand_over(&mut rogue, &files.collect::<Vec<_>>());
            (rogue, register, clients)
        };
        let rogues = [0, 1, 2, 3].map(keep);
        wait_for_rounds(server, 5);
        drop(rogues);
        wait_for_rounds(server, 5);
    });
}

#[test]
fn who_shares_memory_may_still_have_a_version_as_blocks() {
    attacked(endless(), |server| {
        let mut rogue = Rogue::join(server.address);
        let segments = segments();
        let files: Vec<_> = segments.iter().map(AsFd::as_fd).collect();
        share(&mut rogue, &files);
        wait_for_rounds(server, 2);
        rogue.data[0].say(&ToData::Pull { version: Version(0), shared: true });
        assert!(matches!(rogue.data[0].hear(), FromData::Published { .. }));
        // The same by blocks, whatever was answered before.
        assert_eq!(rogue.pull(Version(0)).len(), PARAMS);
    });
}
