//! Progress of work that takes longer than a second.

use std::{
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::console::say;

/// Time before anything is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval between lines in a pipe.
const EVERY: Duration = Duration::from_secs(2);

/// How long the end of the work waits for a terminal to clear the spinner.
const CLEARING: Duration = Duration::from_secs(1);

/// Shows the current stage on standard error: a spinner on a terminal, occasional lines in a pipe.
/// Dropping it clears the spinner.
pub(crate) struct Progress {
    stages: Option<Sender<String>>,
    shown: JoinHandle<()>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let (stages, received) = mpsc::channel::<String>();
        let shown = thread::spawn(move || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            let (mut stage, mut due) = (String::new(), Instant::now() + PATIENCE);
            loop {
                match received.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(next) => stage = next,
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) if bar.is_hidden() => {
                        say(format_args!("{stage}…"));
                        due += EVERY;
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        bar.set_message(stage.clone());
                        bar.tick();
                        due += Duration::from_millis(100);
                    }
                }
            }
            bar.finish_and_clear();
        });
        Progress { stages: Some(stages), shown }
    }

    /// Sets the current stage.
    pub(crate) fn say(&self, stage: String) {
        if let Some(stages) = &self.stages {
            let _ = stages.send(stage);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stages = None;
        let deadline = Instant::now() + CLEARING;
        while !self.shown.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
