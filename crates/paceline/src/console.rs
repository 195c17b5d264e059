//! Standard error behind a bounded queue: a reader that does not read blocks one thread and nothing
//! else.
//!
//! A pipe without a reader at work and a terminal stopped with Ctrl-S both block their writer. During a
//! run only the thread of [`Console`] writes to standard error. Lines that find the queue full are
//! dropped and counted; the event log has everything.

use std::{
    fmt::Display as Text,
    io::{self, Write},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;

/// Lines that may wait to be written.
const QUEUE: usize = 1024;

/// How long a [`flush`] waits for the reader of standard error.
const FLUSH: Duration = Duration::from_secs(1);

/// One request to the thread that writes.
enum ConsoleRequest {
    Line(String),
    /// Later lines go above this bar.
    Bar(ProgressBar),
    Status(Status),
    ClearBar,
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

/// What a progress bar shows.
pub(crate) struct Status {
    /// The round at which the run will end, if known.
    pub(crate) goal: Option<u64>,
    /// Rounds done.
    pub(crate) rounds: u64,
    /// The text beside the bar.
    pub(crate) text: String,
}

/// A bounded queue of output and the thread that writes it.
struct Console {
    queue: SyncSender<ConsoleRequest>,
    lost: &'static AtomicU64,
    /// The last flush timed out, and nothing was written since.
    stuck: &'static AtomicBool,
}

impl Console {
    fn new(writer: impl Write + Send + 'static) -> Console {
        let (queue, outputs) = mpsc::sync_channel(QUEUE);
        let lost: &AtomicU64 = Box::leak(Box::default());
        let stuck: &AtomicBool = Box::leak(Box::default());
        let thread = thread::Builder::new().name("console".to_owned());
        // Without a thread the queue is closed, and callers write their lines themselves.
        let _ = thread.spawn(move || write(writer, &outputs, lost, stuck));
        Console { queue, lost, stuck }
    }

    fn say(&self, line: String) {
        match self.queue.try_send(ConsoleRequest::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Disconnected(ConsoleRequest::Line(line))) => {
                let _ = writeln!(io::stderr(), "{line}");
            }
            Err(_) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Waits until all queued lines are written, at most [`FLUSH`]. After a timeout it does not wait
    /// again until the reader has read something.
    fn flush(&self) {
        if self.stuck.load(Ordering::Relaxed) {
            return;
        }
        let (done, flushed) = mpsc::sync_channel(1);
        let deadline = Instant::now() + FLUSH;
        let mut request = ConsoleRequest::Flush(done);
        while let Err(TrySendError::Full(refused)) = self.queue.try_send(request) {
            if Instant::now() >= deadline {
                return self.stuck.store(true, Ordering::Relaxed);
            }
            request = refused;
            thread::sleep(Duration::from_millis(5));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if flushed.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
            self.stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// Writes queued output for as long as the process lives. A closed reader (`2>&1 | head`) does not end a
/// run.
fn write(
    mut writer: impl Write,
    outputs: &Receiver<ConsoleRequest>,
    lost: &AtomicU64,
    stuck: &AtomicBool,
) {
    let mut bar: Option<ProgressBar> = None;
    let mut line = |bar: &Option<ProgressBar>, line: &str| match bar {
        Some(bar) => bar.println(line),
        None => drop(writeln!(writer, "{line}")),
    };
    for output in outputs {
        match output {
            ConsoleRequest::Line(text) => line(&bar, &text),
            ConsoleRequest::Bar(new) => bar = Some(new),
            ConsoleRequest::Status(Status { goal, rounds, text }) => {
                if let Some(bar) = &bar {
                    goal.into_iter().for_each(|goal| bar.set_length(goal));
                    bar.set_position(rounds);
                    bar.set_message(text);
                }
            }
            ConsoleRequest::ClearBar => bar.take().iter().for_each(ProgressBar::finish_and_clear),
            ConsoleRequest::Flush(done) => drop(done.send(())),
        }
        stuck.store(false, Ordering::Relaxed);
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => {
                line(&bar, &format!("({lost} lines were dropped: standard error was not read)"))
            }
        }
    }
}

fn console() -> &'static Console {
    static CONSOLE: OnceLock<Console> = OnceLock::new();
    CONSOLE.get_or_init(|| Console::new(io::stderr()))
}

/// Queues a line for standard error. Never blocks; the line is dropped if standard error is not read.
pub(crate) fn say(line: impl Text) {
    console().say(line.to_string());
}

/// Prints a line on standard output, after all earlier lines on standard error. A closed reader is
/// ignored; a reader that does not read blocks the caller.
pub(crate) fn print(line: impl Text) {
    flush();
    let _ = writeln!(io::stdout(), "{line}");
}

/// Waits until all queued lines are written, at most [`FLUSH`].
pub(crate) fn flush() {
    console().flush();
}

/// Shows `bar` on a terminal until [`clear_bar`].
pub(crate) fn show_bar(bar: ProgressBar) {
    let _ = console().queue.try_send(ConsoleRequest::Bar(bar));
}

/// Updates the bar, if one is shown and standard error is read.
pub(crate) fn show_status(status: Status) {
    let _ = console().queue.try_send(ConsoleRequest::Status(status));
}

/// Removes the bar.
pub(crate) fn clear_bar() {
    let _ = console().queue.try_send(ConsoleRequest::ClearBar);
}

/// The writer of diagnostics: each write is one record and becomes one line.
pub(crate) struct Diagnostics;

impl Write for Diagnostics {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        say(String::from_utf8_lossy(record).trim_end());
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::*;

    /// A pipe whose reader reads nothing until it is told to.
    #[derive(Clone, Default)]
    struct Pipe {
        shared: Arc<(Mutex<Contents>, Condvar)>,
    }

    #[derive(Default)]
    struct Contents {
        is_read: bool,
        bytes: Vec<u8>,
    }

    impl Pipe {
        fn read_on(&self) {
            self.shared.0.lock().unwrap().is_read = true;
            self.shared.1.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.shared.0.lock().unwrap().bytes.clone()).unwrap()
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let contents = self.shared.0.lock().unwrap();
            let mut contents = self.shared.1.wait_while(contents, |c| !c.is_read).unwrap();
            contents.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unread_lines_are_dropped_and_counted_without_blocking() {
        let pipe = Pipe::default();
        let console = Console::new(pipe.clone());
        let (said, extra) = (QUEUE + 500, 500);
        (0..said).for_each(|line| console.say(format!("line {line}")));
        let began = Instant::now();
        console.flush();
        assert!(began.elapsed() >= FLUSH, "it waits a moment for the reader");
        let again = Instant::now();
        (0..100).for_each(|_| console.flush());
        assert!(again.elapsed() < FLUSH, "but only once");
        pipe.read_on();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !pipe.text().contains("lines were dropped") {
            assert!(Instant::now() < deadline, "{}", pipe.text());
            thread::sleep(Duration::from_millis(5));
        }
        // The thread may have taken one line out of the queue before it was full.
        let told = [extra, extra - 1].map(|lost| format!("({lost} lines were dropped"));
        let text = pipe.text();
        assert!(told.iter().any(|told| text.contains(told)), "{text}");
        console.say("the last".to_owned());
        console.flush();
        assert!(pipe.text().ends_with("the last\n"), "{}", pipe.text());
    }
}
