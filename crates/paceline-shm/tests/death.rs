//! A process that dies while its memory is read.

use std::{
    io::{BufRead, BufReader},
    os::fd::AsFd,
    process::{Command, Stdio},
    time::Duration,
};

use paceline_shm::{Meeting, Segment, View, Visit};

const ELEMENTS: usize = 1 << 20;

/// Not a test by itself: what the other process does.
#[test]
fn the_other_process() {
    let Ok(name) = std::env::var("PACELINE_SHM_MEETING") else { return };
    let mut segment = Segment::new(ELEMENTS).unwrap();
    let visit = Visit::to(&name).unwrap();
    visit.bring(5, &[segment.as_fd()]).unwrap();
    println!("here");
    visit.receive(Duration::from_secs(10)).unwrap();
    for turn in 1u16.. {
        segment.fill(f32::from(turn));
        println!("wrote");
    }
}

#[test]
fn memory_of_a_killed_process_can_be_read_to_its_end_and_goes_with_its_last_reader() {
    let nonce = (u128::from(std::process::id()) << 64) | 9;
    let meeting = Meeting::open(nonce).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "the_other_process"])
        .env("PACELINE_SHM_MEETING", meeting.name())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("here")));
    let guest = meeting.guest(5).unwrap();
    let view = View::of(&guest.files()[0], ELEMENTS).unwrap();
    guest.give(&[]).unwrap();
    assert!(said.any(|line| line.unwrap().contains("wrote")));
    other.kill().unwrap();
    other.wait().unwrap();
    let mut copy = vec![0.0; ELEMENTS];
    view.read(0, &mut copy);
    assert!(copy.iter().all(|&x| x > 0.0), "it had written all of it once");
    drop(view);
    let left = std::fs::read_dir("/dev/shm").map_or(0, |files| {
        files.flatten().filter(|f| f.file_name().to_string_lossy().contains("paceline")).count()
    });
    assert_eq!(left, 0);
}
