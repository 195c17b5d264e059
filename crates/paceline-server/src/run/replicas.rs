//! Replicas: where workers keep the parameters themselves, how each version was stepped, and whether the
//! states of the workers agree.

use std::{collections::BTreeMap, time::Duration};

use paceline_core::{EventKind, LeaveReason, Time, Version, WorkerId};
use paceline_wire::message::ToWorker;

use super::Run;

/// The most records that are kept.
const RECORDS: usize = 1024;

/// The most bytes of records that are kept.
const RECORD_BYTES: usize = 64 << 20;

/// The longest record, in bytes.
const MAX_RECORD: usize = 1 << 20;

/// The most bytes of records in an answer; a worker asks again for the rest.
const ANSWER_BYTES: usize = 2 << 20;

/// Hash reports of a version are judged at the latest when one of this many versions later arrives.
const JUDGED_AFTER: u64 = 2;

/// How long workers have at the end of a run to step its last version.
const LEVELLING: Duration = Duration::from_secs(10);

/// Messages to workers.
type Messages = Vec<(WorkerId, ToWorker)>;

/// Records of how versions were stepped, and hashes of the states that followed.
#[derive(Default)]
pub(super) struct Replicas {
    records: BTreeMap<Version, Vec<u8>>,
    /// Workers that wait for the records of these versions.
    waiting: BTreeMap<WorkerId, (Version, Version)>,
    /// When the run began to end.
    ending: Option<Time>,
    /// The version that each worker has stepped.
    at: BTreeMap<WorkerId, Version>,
    /// Reports on versions that are not judged yet.
    reports: BTreeMap<Version, BTreeMap<WorkerId, Vec<u64>>>,
}

/// A worker whose state of a version differs from that of most others.
#[derive(Debug, PartialEq, Eq)]
struct Mismatch {
    worker: WorkerId,
    version: Version,
    places: Vec<u32>,
}

impl Replicas {
    /// The replicas of a run that begins with this version, with the record of how it was stepped.
    pub(super) fn new(version: Version, record: Option<Vec<u8>>) -> Self {
        let records = record.map(|record| (version, record)).into_iter().collect();
        Replicas { records, ..Replicas::default() }
    }

    /// The newest record of this version or an older one.
    pub(super) fn newest_record(&self, version: Version) -> Option<(Version, &[u8])> {
        let (of, record) = self.records.range(..=version).next_back()?;
        Some((*of, record))
    }

    /// A worker has stepped a version. The first record counts; all are alike. A worker that replayed the
    /// version sends an empty one.
    fn stepped(&mut self, worker: WorkerId, version: Version, record: Vec<u8>) -> Messages {
        self.at.insert(worker, version);
        if record.is_empty() {
            return Vec::new();
        }
        self.records.entry(version).or_insert(record);
        let bytes = |records: &BTreeMap<_, Vec<u8>>| records.values().map(Vec::len).sum::<usize>();
        while self.records.len() > RECORDS || bytes(&self.records) > RECORD_BYTES {
            self.records.pop_first();
        }
        let complete = |&(_, &(_, last)): &(&WorkerId, &(Version, Version))| last <= version;
        let ready: Vec<WorkerId> =
            self.waiting.iter().filter(complete).map(|(&worker, _)| worker).collect();
        ready.into_iter().filter_map(|worker| self.answer(worker)).collect()
    }

    /// A worker asks for the records of versions `first..=last`; `live` workers could step them. It waits for
    /// records that are still to come, if any worker can send them.
    fn want(
        &mut self,
        worker: WorkerId,
        (first, last): (Version, Version),
        live: usize,
    ) -> Messages {
        self.waiting.insert(worker, (first, last));
        let newest = self.records.last_key_value().map(|(&version, _)| version);
        match newest >= Some(last) {
            true => self.answer(worker).into_iter().collect(),
            false => self.release(live),
        }
    }

    /// A worker is gone, and `live` are left.
    fn forget(&mut self, worker: WorkerId, live: usize) -> Messages {
        self.waiting.remove(&worker);
        self.at.remove(&worker);
        self.reports.values_mut().for_each(|reports| drop(reports.remove(&worker)));
        self.release(live)
    }

    /// If all live workers wait for records, no worker will send more: they get those that there are.
    fn release(&mut self, live: usize) -> Messages {
        if self.waiting.len() < live {
            return Vec::new();
        }
        let waiting: Vec<WorkerId> = self.waiting.keys().copied().collect();
        waiting.into_iter().filter_map(|worker| self.answer(worker)).collect()
    }

    /// The records from the first version that is wanted and kept, without a gap, as many as fit into an
    /// answer.
    fn answer(&mut self, worker: WorkerId) -> Option<(WorkerId, ToWorker)> {
        let (wanted, last) = self.waiting.remove(&worker)?;
        let mut kept = self.records.range(wanted..=last).peekable();
        let first = kept.peek().map_or(wanted, |(version, _)| **version);
        let mut bytes = 0;
        let fits = |record: &Vec<u8>| {
            bytes += record.len();
            bytes <= ANSWER_BYTES
        };
        let records = kept
            .zip(first.0..)
            .take_while(|((version, _), due)| version.0 == *due)
            .map(|((_, record), _)| record.clone())
            .take_while(fits)
            .collect();
        Some((worker, ToWorker::Records { first, records }))
    }

    /// A worker reports the hashes of its state. Returns the workers that must take the run's state: those
    /// that differ from most others or, if as many say one thing as another, from the lowest-numbered worker.
    fn report(
        &mut self,
        worker: WorkerId,
        version: Version,
        hashes: Vec<u64>,
        live: usize,
    ) -> Vec<Mismatch> {
        let reports = self.reports.entry(version).or_default();
        reports.insert(worker, hashes);
        let complete = reports.len() >= live;
        let due = version.0.saturating_sub(JUDGED_AFTER);
        let mut found = Vec::new();
        while let Some(entry) = self.reports.first_entry() {
            let is_due = entry.key().0 <= due || (complete && *entry.key() <= version);
            if !is_due {
                break;
            }
            let (version, reports) = entry.remove_entry();
            found.extend(judge(version, &reports));
        }
        found
    }
}

fn judge(version: Version, reports: &BTreeMap<WorkerId, Vec<u64>>) -> Vec<Mismatch> {
    let mut camps: BTreeMap<&[u64], usize> = BTreeMap::new();
    reports.values().for_each(|hashes| *camps.entry(hashes).or_default() += 1);
    let most = camps.values().copied().max().unwrap_or_default();
    let Some(right) = reports.values().find(|hashes| camps[hashes.as_slice()] == most) else {
        return Vec::new();
    };
    let differs = |(&worker, hashes): (&WorkerId, &Vec<u64>)| {
        let pairs = (0..).zip(hashes.iter().zip(right));
        let places: Vec<u32> = pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
        (hashes != right).then_some(Mismatch { worker, version, places })
    };
    reports.iter().filter_map(differs).collect()
}

impl Run {
    pub(super) fn stepped(
        &mut self,
        worker: WorkerId,
        version: Version,
        record: Vec<u8>,
    ) -> Result<(), LeaveReason> {
        // Shards publish a version a moment before the coordinator knows of it.
        if version > self.updates.version.next() || record.len() > MAX_RECORD {
            let error = format!("{worker} says that it stepped {version} ({} bytes)", record.len());
            return Err(LeaveReason::Misbehaved(error));
        }
        let messages = self.replicas.stepped(worker, version, record);
        self.tell(messages);
        self.pair_with_record();
        Ok(())
    }

    /// Whether every live worker has stepped the last version, or had time to.
    pub(super) fn replicas_are_level(&mut self) -> bool {
        if !self.config.keeps_history() {
            return true;
        }
        let (now, version) = (self.now(), self.updates.version);
        let since = *self.replicas.ending.get_or_insert(now);
        let stepped = |worker: WorkerId| self.replicas.at.get(&worker) >= Some(&version);
        let mut live = self.core.machine().live();
        let stepped_none = version == self.ending.first_version;
        now.since(since) > LEVELLING || stepped_none || live.all(stepped)
    }

    /// Live workers that do not wait for a state.
    fn stepping(&self) -> usize {
        self.core.machine().live().filter(|&worker| !self.states.waits(worker)).count()
    }

    pub(super) fn want_records(&mut self, worker: WorkerId, versions: (Version, Version)) {
        let messages = self.replicas.want(worker, versions, self.stepping());
        self.tell(messages);
    }

    pub(super) fn forget_replica(&mut self, worker: WorkerId) {
        let messages = self.replicas.forget(worker, self.stepping());
        self.tell(messages);
    }

    /// A worker reports the hashes of its state of a version.
    pub(super) fn compare_replica(&mut self, worker: WorkerId, version: Version, hashes: Vec<u64>) {
        let live = self.core.machine().live().len();
        for mismatch in self.replicas.report(worker, version, hashes, live) {
            let Mismatch { worker, version, places } = mismatch;
            let tensors = self.layout.tensors();
            let name = |place: usize| match tensors.get(place) {
                Some(tensor) => tensor.name.clone(),
                None => match tensors.get(place - tensors.len()) {
                    Some(tensor) => format!("optimizer state of {}", tensor.name),
                    None => format!("hash {place}"),
                },
            };
            let tensor = places.first().map_or_else(|| "?".to_owned(), |&at| name(at as usize));
            let differing = places.len() as u32;
            self.emit(EventKind::Mismatch { worker, version, tensor, differing });
            self.members.workers.send(worker, &ToWorker::Mismatch { version, places });
        }
    }

    fn tell(&self, messages: Messages) {
        for (worker, message) in messages {
            self.members.workers.send(worker, &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_wire::frame::encode_control;

    use super::*;

    const W: [WorkerId; 4] = [WorkerId(0), WorkerId(1), WorkerId(2), WorkerId(3)];

    fn records(first: u64, records: &[&str]) -> ToWorker {
        let records = records.iter().map(|record| record.as_bytes().to_vec()).collect();
        ToWorker::Records { first: Version(first), records }
    }

    #[test]
    fn a_worker_that_missed_versions_gets_their_records_once_all_are_known() {
        let mut replicas = Replicas::default();
        assert!(replicas.stepped(W[0], Version(1), b"a".to_vec()).is_empty());
        assert!(replicas.stepped(W[0], Version(1), b"other".to_vec()).is_empty());
        assert!(replicas.stepped(W[0], Version(2), b"b".to_vec()).is_empty());
        assert!(replicas.want(W[3], (Version(1), Version(3)), 4).is_empty(), "v3 is to come");
        let told = replicas.stepped(W[0], Version(3), b"c".to_vec());
        assert_eq!(told, [(W[3], records(1, &["a", "b", "c"]))]);
        let told = replicas.want(W[2], (Version(2), Version(2)), 4);
        assert_eq!(told, [(W[2], records(2, &["b"]))]);
    }

    #[test]
    fn records_that_are_gone_show_by_the_first_version() {
        let mut replicas = Replicas::default();
        for version in 1..=RECORDS as u64 + 5 {
            replicas.stepped(W[0], Version(version), b"x".to_vec());
        }
        let told = replicas.want(W[0], (Version(2), Version(7)), 4);
        assert_eq!(told, [(W[0], records(6, &["x", "x"]))]);
    }

    #[test]
    fn an_answer_fits_into_a_message() {
        let mut replicas = Replicas::default();
        for version in 1..=9 {
            replicas.stepped(W[0], Version(version), vec![7; MAX_RECORD]);
        }
        let (_, told) = replicas.want(W[3], (Version(1), Version(9)), 4).remove(0);
        assert_eq!(
            told,
            ToWorker::Records { first: Version(1), records: vec![vec![7; MAX_RECORD]; 2] }
        );
        assert!(encode_control(&told).is_ok());
    }

    #[test]
    fn nobody_waits_for_a_record_that_nobody_can_send() {
        let mut replicas = Replicas::default();
        replicas.stepped(W[0], Version(1), b"a".to_vec());
        assert!(replicas.want(W[0], (Version(1), Version(2)), 2).is_empty());
        let told = replicas.forget(W[1], 1);
        assert_eq!(told, [(W[0], records(1, &["a"]))]);
    }

    #[test]
    fn the_minority_is_told_and_the_lowest_number_breaks_a_tie() {
        let mut replicas = Replicas::default();
        let report = |replicas: &mut Replicas, worker: usize, hashes: &[u64]| {
            replicas.report(W[worker], Version(8), hashes.to_vec(), 3)
        };
        assert_eq!(report(&mut replicas, 0, &[1, 9, 3]), []);
        assert_eq!(report(&mut replicas, 1, &[1, 2, 3]), []);
        let found = report(&mut replicas, 2, &[1, 2, 3]);
        assert_eq!(found, [Mismatch { worker: W[0], version: Version(8), places: vec![1] }]);
        let mut reports = BTreeMap::from([(W[1], vec![1, 1]), (W[2], vec![1, 2])]);
        assert_eq!(judge(Version(1), &reports)[0].worker, W[2]);
        reports.insert(W[3], vec![1, 2]);
        assert_eq!(judge(Version(1), &reports)[0].worker, W[1]);
    }

    #[test]
    fn reports_are_judged_when_a_later_version_is_reported() {
        let mut replicas = Replicas::default();
        assert!(replicas.report(W[0], Version(4), vec![1], 3).is_empty());
        assert!(replicas.report(W[1], Version(4), vec![2], 3).is_empty());
        let found = replicas.report(W[0], Version(8), vec![1], 3);
        assert_eq!(found, [Mismatch { worker: W[1], version: Version(4), places: vec![0] }]);
    }
}
