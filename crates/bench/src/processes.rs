//! Processes that a bench starts itself: a server and its workers.

use std::{
    io::{self, BufRead, BufReader},
    process::Child,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

/// Child processes, ended when dropped.
pub(crate) struct Processes(pub(crate) Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The address that the server prints; other output is ignored.
pub(crate) fn address(server: &mut Child) -> Result<String> {
    let mut said = BufReader::new(server.stderr.take().context("the server says nothing")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening on ").map(str::to_owned);
    std::thread::spawn(move || io::copy(&mut said, &mut io::sink()));
    address.with_context(|| format!("the server does not listen: {line}"))
}

/// Waits until `done`, at most two minutes.
pub(crate) fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !done()? {
        ensure!(began.elapsed() < Duration::from_secs(120), "{what} did not come in two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
