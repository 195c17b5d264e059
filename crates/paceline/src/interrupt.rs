//! Ctrl-C during work that can end early with the results so far.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

use crate::console::say;

/// A flag that the first Ctrl-C sets, after saying `line`. The second one ends the process.
pub(crate) fn interrupt_flag(line: &'static str) -> Result<Arc<AtomicBool>> {
    let runtime =
        Builder::new_current_thread().enable_io().build().context("failed to listen for Ctrl-C")?;
    let mut interrupts = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt()).context("failed to listen for Ctrl-C")?
    };
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    thread::spawn(move || {
        runtime.block_on(async {
            interrupts.recv().await;
            say(line);
            set.store(true, Ordering::Relaxed);
            interrupts.recv().await;
            process::exit(130);
        });
    });
    Ok(flag)
}
