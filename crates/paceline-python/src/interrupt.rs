//! Waits that Ctrl-C ends.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use pyo3::{PyResult, Python, exceptions::PyRuntimeError};

/// How often the interpreter looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own and waits for it without the GIL. A signal whose handler raises,
/// such as Ctrl-C, ends the wait: `work` then goes on unheard, unless it learns of it by other means.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let done = interruptible_for(py, None, work)?;
    done.ok_or_else(|| PyRuntimeError::new_err("the computation did not end"))
}

/// As [`interruptible`], for at most `patience`; then `work` goes on unheard, and there is no result.
pub(crate) fn interruptible_for<T: Send + 'static>(
    py: Python<'_>,
    patience: Option<Duration>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<Option<T>> {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::Builder::new().name("paceline".to_owned());
    worker.spawn(move || sender.send(work()))?;
    // A receiver may wait in one thread only; the mutex tells the compiler that it does.
    let receiver = std::sync::Mutex::new(receiver);
    let deadline = patience.map(|patience| Instant::now() + patience);
    loop {
        let received = py.detach(|| {
            let receiver = receiver.lock().map_err(|_| RecvTimeoutError::Disconnected)?;
            receiver.recv_timeout(LOOK)
        });
        match received {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the computation failed; see standard error"));
            }
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(None);
        }
    }
}

/// Runs `work` without the GIL, with a function that says whether to go on: no after a signal whose handler
/// raises, such as Ctrl-C.
pub(crate) fn while_no_signal<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> T + Send,
) -> PyResult<T> {
    let mut signals = Ok(());
    let done = py.detach(|| {
        work(&mut || {
            signals = Python::attach(|py| py.check_signals());
            signals.is_ok()
        })
    });
    signals.map(|()| done)
}
