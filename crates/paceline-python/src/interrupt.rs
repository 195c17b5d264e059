//! Waits that Ctrl-C ends.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
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
    let (sender, receiver) = mpsc::channel();
    let worker = thread::Builder::new().name("paceline".to_owned());
    worker.spawn(move || sender.send(work()))?;
    // A receiver may wait in one thread only; the mutex tells the compiler that it does.
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let received = py.detach(|| {
            let receiver = receiver.lock().map_err(|_| RecvTimeoutError::Disconnected)?;
            receiver.recv_timeout(LOOK)
        });
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the computation failed; see standard error"));
            }
        }
    }
}
