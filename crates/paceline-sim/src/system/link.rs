//! One direction of a shard's link, shared fairly by the transfers on it.

use std::{collections::VecDeque, time::Duration};

use paceline_core::Time;

/// A fluid link: each of k transfers gets `min(cap, bandwidth / k)`, as TCP roughly does.
///
/// All transfers have the same size and get the same rate, so one number suffices: the bytes that a
/// transfer *present all along* would have got (`progress`). A transfer that enters at progress p ends
/// at p + size, and transfers end in the order in which they entered. The link is thus a queue with
/// O(1) work per event, where unequal sizes would need a heap. A transfer that is stopped frees its
/// share at once; its queue entry is skipped later.
#[derive(Debug, Clone)]
pub(super) struct SimLink {
    /// Bytes per transfer; above 0.
    size: f64,
    /// Bytes per second of the link.
    bandwidth: f64,
    /// Most bytes per second for one transfer.
    cap: f64,
    /// Bytes that a transfer present since the link was last idle would have got by `at`.
    progress: f64,
    at: Time,
    active: usize,
    queue: VecDeque<QueueEntry>,
    /// The ticket of each worker's transfer, if it has one.
    tickets: Vec<Option<u64>>,
    next_ticket: u64,
}

#[derive(Debug, Clone, Copy)]
struct QueueEntry {
    end: f64,
    worker: usize,
    ticket: u64,
}

impl SimLink {
    pub(super) fn new(workers: usize, size: f64, bandwidth: f64, cap: f64) -> SimLink {
        SimLink {
            size,
            bandwidth,
            cap,
            progress: 0.0,
            at: Time::ZERO,
            active: 0,
            queue: VecDeque::new(),
            tickets: vec![None; workers],
            next_ticket: 0,
        }
    }

    /// Begins a worker's transfer; it has none on this link yet.
    pub(super) fn enter(&mut self, worker: usize, now: Time) {
        self.advance(now);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.active += 1;
        self.queue.push_back(QueueEntry { end: self.progress + self.size, worker, ticket });
        let before = self.tickets[worker].replace(ticket);
        debug_assert!(before.is_none(), "one transfer per worker");
    }

    /// Stops a worker's transfer, if it has one.
    pub(super) fn leave(&mut self, worker: usize, now: Time) {
        if self.tickets[worker].is_some() {
            self.advance(now);
            self.end(worker);
        }
    }

    /// The next moment at which a transfer ends, if nothing changes.
    pub(super) fn next(&mut self) -> Option<Time> {
        while let Some(entry) = self.queue.front() {
            if self.tickets[entry.worker] == Some(entry.ticket) {
                let nanos = (entry.end - self.progress).max(0.0) / self.rate() * 1e9;
                return Some(self.at + Duration::from_nanos(nanos.round() as u64));
            }
            self.queue.pop_front();
        }
        None
    }

    /// Removes and returns a worker whose transfer has ended by now.
    pub(super) fn ended(&mut self, now: Time) -> Option<usize> {
        if self.next()? > now {
            return None;
        }
        self.advance(now);
        let entry = self.queue.pop_front()?;
        self.end(entry.worker);
        Some(entry.worker)
    }

    /// The share of the bandwidth in use.
    pub(super) fn load(&self) -> f64 {
        (self.active as f64 * self.cap / self.bandwidth).min(1.0)
    }

    fn end(&mut self, worker: usize) {
        self.tickets[worker] = None;
        self.active -= 1;
        if self.active == 0 {
            self.progress = 0.0;
            self.queue.clear();
        }
    }

    fn rate(&self) -> f64 {
        self.cap.min(self.bandwidth / self.active.max(1) as f64)
    }

    fn advance(&mut self, now: Time) {
        if self.active > 0 {
            self.progress += self.rate() * now.since(self.at).as_secs_f64();
        }
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    /// Ends all transfers; returns workers and end times.
    fn ends(link: &mut SimLink) -> Vec<(usize, f64)> {
        let mut ends = Vec::new();
        while let Some(now) = link.next() {
            ends.push((link.ended(now).expect("it was said to end"), now.as_secs_f64()));
        }
        ends
    }

    #[test]
    fn transfers_that_begin_together_end_together_after_all_bytes() {
        let mut link = SimLink::new(4, 100.0, 50.0, 1000.0);
        (0..4).for_each(|worker| link.enter(worker, at(1.0)));
        assert_eq!(ends(&mut link), [(0, 9.0), (1, 9.0), (2, 9.0), (3, 9.0)]);
    }

    #[test]
    fn a_second_transfer_halves_the_rate_while_both_are_there() {
        let mut link = SimLink::new(2, 100.0, 50.0, 1000.0);
        link.enter(0, at(0.0));
        link.enter(1, at(1.0));
        // 50 bytes alone, 50 shared in 2 s; then the other has 50 left, alone.
        assert_eq!(ends(&mut link), [(0, 3.0), (1, 4.0)]);
    }

    #[test]
    fn a_transfer_is_no_faster_than_its_worker() {
        let mut link = SimLink::new(2, 100.0, 50.0, 10.0);
        link.enter(0, at(0.0));
        link.enter(1, at(1.0));
        assert!((link.load() - 0.4).abs() < 1e-12);
        assert_eq!(ends(&mut link), [(0, 10.0), (1, 11.0)]);
        assert_eq!(link.load(), 0.0);
    }

    #[test]
    fn a_stopped_transfer_leaves_its_share_to_the_others() {
        let mut link = SimLink::new(2, 100.0, 50.0, 1000.0);
        link.enter(0, at(0.0));
        link.enter(1, at(0.0));
        link.leave(0, at(2.0));
        link.leave(0, at(2.0));
        assert_eq!(ends(&mut link), [(1, 3.0)]);
        link.enter(0, at(5.0));
        assert_eq!(ends(&mut link), [(0, 7.0)]);
    }
}
