//! Pulls that a worker cancels: the shard stops, and the connection stays usable.

mod common;

use common::{
    Server, config,
    rogue::{Line, Rogue},
    start,
};
use paceline_core::Version;
use paceline_params::TensorSpec;
use paceline_server::Start;
use paceline_wire::{
    frame::{HEADER_LEN, Header, MAX_CONTROL, decode_control},
    message::{FromData, ToData},
};

/// 64 MiB of parameters, more than sockets hold, in blocks of 256 KiB.
const LARGE: usize = 1 << 24;
const BLOCK: usize = 1 << 16;

/// Reads blocks until the shard confirms the cancel; returns how many there were.
fn blocks_until_cancelled(line: &mut Line) -> usize {
    let mut blocks = 0;
    loop {
        let mut header = [0; HEADER_LEN];
        line.read(&mut header);
        let header = Header::decode(header, MAX_CONTROL).unwrap();
        let mut payload = vec![0; header.frame_len() - HEADER_LEN];
        line.read(&mut payload);
        if let Header::Control(_) = header {
            assert_eq!(decode_control::<FromData>(&payload).unwrap(), FromData::Cancelled);
            return blocks;
        }
        blocks += 1;
    }
}

#[test]
fn a_cancelled_answer_stops_early_and_the_next_one_is_whole() {
    let mut config = config(1);
    config.placement.shards = 1;
    config.placement.block_elems = BLOCK;
    let tensors = vec![TensorSpec::new("w", [LARGE])];
    let start = Start { tensors, params: vec![0.5; LARGE].into(), ..start() };
    let mut server = Server::start(config, start);
    let mut rogue = Rogue::join(server.address);
    let line = &mut rogue.data[0];

    // The shard fills the sockets' buffers, and finds the cancel while it waits for room in them.
    line.say(&ToData::Pull { version: Version(0), shared: false });
    line.say(&ToData::Cancel);
    let sent = blocks_until_cancelled(line);
    assert!(sent < LARGE / BLOCK, "all of {sent} blocks");
    // A version that nobody has made yet.
    line.say(&ToData::Pull { version: Version(7), shared: false });
    line.say(&ToData::Cancel);
    assert_eq!(blocks_until_cancelled(line), 0);
    // No pull at all.
    line.say(&ToData::Cancel);
    assert_eq!(blocks_until_cancelled(line), 0);

    assert!(rogue.pull(Version(0)).iter().all(|&x| x == 0.5));
    server.interrupt();
    server.join().0.unwrap();
}
