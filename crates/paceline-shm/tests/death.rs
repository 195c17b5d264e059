//! A process that dies while its memory is read.

use std::{
    io::{BufRead, BufReader, Write},
    os::{fd::AsFd, unix::fs::MetadataExt},
    process::{Command, Stdio},
};

use paceline_shm::{HandoverClient, HandoverListener, Segment, View};

const ELEMENTS: usize = 1 << 20;

/// Not a test by itself: the program of the other process.
#[test]
fn the_other_process() {
    let Ok(name) = std::env::var("PACELINE_SHM_LISTENER") else { return };
    let mut segment = Segment::new(ELEMENTS).unwrap();
    let client = HandoverClient::connect(&name).unwrap();
    client.send(5, &[segment.as_fd()]).unwrap();
    println!("connected");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for turn in 1u16.. {
        segment.fill(f32::from(turn));
        println!("wrote");
    }
}

/// Whether this process has the segment with that inode open or mapped.
fn is_held(inode: u64) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(|file| {
        std::fs::metadata(file.path())
            .is_ok_and(|found| found.ino() == inode && is_memfd(&file.path()))
    });
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("/memfd:paceline"));
    open || mapped.filter_map(|line| line.split_whitespace().nth(4)).any(|i| i == inode.to_string())
}

fn is_memfd(path: &std::path::Path) -> bool {
    std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:paceline"))
}

#[test]
fn memory_of_a_killed_process_can_be_read_to_its_end_and_goes_with_its_last_reader() {
    let nonce = (u128::from(std::process::id()) << 64) | 9;
    let listener = HandoverListener::bind(nonce).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "the_other_process"])
        .env("PACELINE_SHM_LISTENER", listener.name())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("connected")));
    let peer = listener.accept(5).unwrap();
    let view = View::map(&peer.files()[0], ELEMENTS).unwrap();
    let file = std::fs::File::from(peer.files()[0].try_clone().unwrap());
    let inode = file.metadata().unwrap().ino();
    drop(file);
    other.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(lines.any(|line| line.unwrap().contains("wrote")));
    other.kill().unwrap();
    other.wait().unwrap();
    let mut copy = vec![0.0; ELEMENTS];
    view.read(0, &mut copy);
    assert!(copy.iter().all(|&x| x > 0.0), "it had written all of it once");
    assert!(is_held(inode));
    drop(peer);
    assert!(is_held(inode), "it is still mapped");
    drop(view);
    assert!(!is_held(inode), "no process has it any more");
}
