//! Peers that do what no honest one does, byte by byte.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
};

use paceline_core::{ContributionId, Version};
use paceline_params::WireType;
use paceline_wire::{
    BlockingReader,
    frame::{BlockHead, encode_control, preamble},
    message::{FromWorker, Hello, Invitation, Job, Reply, Role, ToData, ToWorker},
};
use serde::{Serialize, de::DeserializeOwned};

use super::LIMIT;

/// One connection to the server.
pub struct Line {
    stream: TcpStream,
}

impl Line {
    /// A connection over which nothing is said yet.
    pub fn open(address: SocketAddr) -> Line {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Line { stream }
    }

    /// A connection that says what it is for, without waiting for an answer.
    pub fn hello(address: SocketAddr, token: &str, role: Role) -> Line {
        let mut line = Line::open(address);
        line.send(&preamble());
        line.say(&Hello { token: token.to_owned(), role });
        BlockingReader::new(&line.stream).preamble().unwrap();
        line
    }

    /// Sends bytes, if the server still takes them.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn say<T: Serialize>(&mut self, message: &T) {
        self.send(&encode_control(message).unwrap());
    }

    pub fn block(&mut self, id: ContributionId, block: u32, values: &[f32]) {
        self.send(&BlockHead { key: id.0, block }.encode(WireType::F32, values.len()));
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.send(&bytes);
    }

    #[track_caller]
    pub fn hear<T: DeserializeOwned>(&mut self) -> T {
        BlockingReader::new(&self.stream).message().unwrap()
    }

    pub fn read(&mut self, bytes: &mut [u8]) {
        self.stream.read_exact(bytes).unwrap();
    }

    /// Says that nothing more will come; what the server says is still heard.
    pub fn close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits until the server closes the connection, whatever it says before that.
    #[track_caller]
    pub fn ends(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return,
                Err(e) => panic!("the connection stays open: {e}"),
            }
        }
    }
}

/// A worker that was let in by the rules.
pub struct Rogue {
    pub control: Line,
    pub data: Vec<Line>,
    /// To share memory, one from each shard.
    pub invitations: Vec<Option<Invitation>>,
    pub job: Job,
    /// What it was given on each version.
    pub ids: BTreeMap<Version, ContributionId>,
}

/// The number rogues ask for.
pub const ROGUE: u32 = 9;

impl Rogue {
    /// Joins and connects to every shard; is not ready yet.
    pub fn join(address: SocketAddr) -> Rogue {
        let role = Role::Worker { wish: Some(ROGUE), name: "rogue".to_owned() };
        let mut control = Line::hello(address, "", role);
        let Reply::Welcome(job) = control.hear::<Reply<Job>>() else { panic!("not let in") };
        let shards = 0..job.layout.shards();
        let (data, invitations) = shards.map(|shard| Self::connect(address, &job, shard)).unzip();
        Rogue { control, data, invitations, job, ids: BTreeMap::new() }
    }

    fn connect(address: SocketAddr, job: &Job, shard: u32) -> (Line, Option<Invitation>) {
        let role = Role::Data { worker: job.worker, session: job.session, shard };
        let mut line = Line::hello(address, "", role);
        let Reply::Welcome(invitation) = line.hear() else { panic!("not let in") };
        (line, invitation)
    }

    /// Says that it is ready and waits for work: the version, and how many samples.
    pub fn ready(&mut self) -> (Version, u32) {
        self.control.say(&FromWorker::Ready { samples: self.job.samples, ahead: 0 });
        self.work()
    }

    /// Waits for work, whatever else it is told.
    pub fn work(&mut self) -> (Version, u32) {
        loop {
            if let ToWorker::Work { id, base, portion, .. } = self.control.hear() {
                self.ids.insert(base, id);
                return (base, portion.len());
            }
        }
    }

    /// What it was given on `base`, or a contribution that nobody was given.
    pub fn id(&self, base: Version) -> ContributionId {
        self.ids.get(&base).copied().unwrap_or(ContributionId(u64::MAX))
    }

    pub fn pull(&mut self, version: Version) -> Vec<f32> {
        let mut params = vec![0.0; self.job.layout.total()];
        for (shard, line) in (0..).zip(&mut self.data) {
            line.say(&ToData::Pull { version, shared: false });
            let mut reader = BlockingReader::new(&line.stream);
            for block in self.job.layout.shard_blocks(shard) {
                reader.header().unwrap();
                reader.block_head().unwrap();
                reader
                    .values(WireType::F32, &mut params[self.job.layout.block_range(block)])
                    .unwrap();
            }
        }
        params
    }

    /// Sends one block of `gradient` to the shard it belongs to.
    pub fn push_block(&mut self, base: Version, gradient: &[f32], block: u32) {
        let shard = self.job.layout.shard_of(block) as usize;
        let range = self.job.layout.block_range(block);
        let id = self.id(base);
        self.data[shard].block(id, block, &gradient[range]);
    }

    pub fn push(&mut self, base: Version, gradient: &[f32]) {
        for block in 0..self.job.layout.blocks() {
            self.push_block(base, gradient, block);
        }
    }

    pub fn done(&mut self, base: Version, weight: f64, loss: f64) {
        self.done_with(base, weight, loss, &[]);
    }

    /// Announces a contribution with learning rates for its round.
    pub fn done_with(&mut self, base: Version, weight: f64, loss: f64, rates: &[f32]) {
        let id = self.id(base);
        self.control.say(&FromWorker::Done {
            id,
            weight,
            loss: Some(loss),
            square: None,
            stale: Vec::new(),
            learning_rates: rates.to_vec(),
        });
    }

    /// Waits until every one of its connections is closed.
    #[track_caller]
    pub fn ends(&mut self) {
        self.control.ends();
        for line in &mut self.data {
            line.ends();
        }
    }
}
