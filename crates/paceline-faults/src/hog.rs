//! A busy loop that competes with a worker for its core.

use std::{
    io::{self, Read},
    thread,
};

/// Keeps a core busy until standard input closes. It closes when the process that started this one is
/// gone, for whatever reason.
pub fn hog() -> io::Result<()> {
    thread::spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
