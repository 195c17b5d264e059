//! λ: the run's recent gain per second.

use paceline_core::{Round, RoundRecord, Time};

use crate::objective::Gain;

/// Rounds that the rate remembers.
const MEMORY: f64 = 60.0;

/// Samples that all participants of a round would have brought, extrapolated from the arrivals.
pub(crate) fn whole(record: &RoundRecord<'_>) -> f64 {
    let whole = record.run_times.iter().filter(|(_, time)| !time.is_censored()).count();
    let parts: f64 = record.salvaged.iter().map(|(_, share)| share).sum();
    let came = whole as f64 + parts;
    let each = if came > 0.0 { record.weight / came } else { record.weight };
    each * record.run_times.len() as f64
}

/// A decayed ratio of sums: gains over the time from opening to opening. The value of a sample changes
/// with the noise scale, so samples are stored and valued on demand.
#[derive(Debug, Clone, Default)]
pub(crate) struct GainRate {
    weight: f64,
    /// Samples that all participants would have brought, extrapolated from the arrivals.
    whole: f64,
    /// From opening to close, summed.
    open: f64,
    /// From opening to the last arrival, summed.
    arrived: f64,
    /// From close to the next opening, summed.
    between: f64,
    rounds: f64,
    closed: Option<Time>,
    seen: Option<Round>,
}

impl GainRate {
    /// A round is open: the time between the last close and its opening is overhead. Returns whether
    /// the round is new.
    pub(crate) fn opened(&mut self, round: Round, opened: Time) -> bool {
        if self.seen == Some(round) {
            return false;
        }
        self.seen = Some(round);
        if let Some(closed) = self.closed {
            self.between += opened.since(closed).as_secs_f64();
        }
        true
    }

    /// A round closed.
    pub(crate) fn closed(&mut self, record: &RoundRecord<'_>) {
        // A round in which all arrive at once is closed without a question.
        self.opened(record.round, record.opened);
        let keep = 1.0 - 1.0 / MEMORY;
        self.weight = keep * self.weight + record.weight;
        self.whole = keep * self.whole + whole(record);
        self.open = keep * self.open + record.closed.since(record.opened).as_secs_f64();
        let observed = record.run_times.iter().filter(|(_, time)| !time.is_censored());
        let last = observed.map(|(_, time)| time.bound()).max().unwrap_or_default();
        self.arrived = keep * self.arrived + last.as_secs_f64();
        self.between *= keep;
        self.rounds = keep * self.rounds + 1.0;
        self.closed = Some(record.closed);
    }

    /// A round closed that waited for other reasons than its gain, and says nothing about the rate.
    pub(crate) fn passed(&mut self, record: &RoundRecord<'_>) {
        self.seen = Some(record.round);
        self.closed = Some(record.closed);
    }

    /// Gain per second; before any round has closed, that of a cut now.
    pub(crate) fn or_now(&self, gain: &Gain, gained: f64, elapsed: f64) -> f64 {
        match self.open > 0.0 {
            true => {
                gain.value(self.weight / self.rounds) * self.rounds / (self.open + self.between)
            }
            false => gain.value(gained) / elapsed,
        }
    }

    /// Approximate samples of a round to which all contribute.
    pub(crate) fn whole(&self) -> f64 {
        if self.rounds > 0.0 { self.whole / self.rounds } else { 1.0 }
    }

    /// Mean time between a close and the next opening.
    pub(crate) fn overhead(&self) -> f64 {
        if self.rounds > 0.0 { self.between / self.rounds } else { 0.0 }
    }

    /// Mean run-time of the last worker to arrive; 0 before any round has closed.
    pub(crate) fn last_arrival(&self) -> f64 {
        if self.rounds > 0.0 { self.arrived / self.rounds } else { 0.0 }
    }

    /// Mean time from opening to close.
    pub(crate) fn typical(&self) -> f64 {
        if self.rounds > 0.0 { self.open / self.rounds } else { 0.0 }
    }
}
