//! Groups of workers that speed up and slow down together (nodes, switches, users), found from the
//! data, each with a factor of its own.
//!
//! A window of residuals is kept for every worker. Every few rounds workers are gathered around
//! leaders whose residuals correlate with theirs; a member stays until it is found in another group. O(n) a round, since the number of leaders is bounded.

use super::common::{Common, Sight};
use crate::predict::residuals::Residuals;

/// Rounds of residuals kept.
const WINDOW: usize = 64;
/// Rounds between searches.
const EVERY: u64 = 16;
/// Correlation with the leader's group that makes a member.
const ALIKE: f64 = 0.6;
/// Fewer are no group.
const LEAST: usize = 3;
/// The most leaders in a search.
const LEADERS: usize = 64;
/// The most members that a group's factor is estimated from; of more, every k-th.
const SAMPLE: usize = 24;
/// Residuals count up to this many spreads.
const CLIP: f32 = 4.0;

/// Workers that move together.
#[derive(Debug, Clone)]
struct Group {
    members: Vec<usize>,
    common: Common,
    /// Its factor in the round last looked at.
    factor: f64,
}

/// All groups, and what they are found from.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    /// Which group a worker is in.
    of: Vec<Option<usize>>,
    /// Residuals of each worker, a ring over rounds.
    window: Vec<[f32; WINDOW]>,
    rounds: u64,
}

impl Groups {
    /// The factor of a worker's group; 0 if it is in none.
    pub(super) fn factor(&self, worker: usize) -> f64 {
        let group = self.of.get(worker).copied().flatten();
        group.map_or(0.0, |group| self.groups[group].factor)
    }

    /// Goes back to what is expected of a round of which nothing is known.
    pub(super) fn expect(&mut self) {
        for group in &mut self.groups {
            group.factor = group.common.expected();
        }
    }

    /// Whether there are any.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Takes back what was concluded from silence: no group is slower than expected. Says whether
    /// that changed anything.
    pub(super) fn expect_no_worse(&mut self) -> bool {
        let mut changed = false;
        for group in &mut self.groups {
            let expected = group.common.expected();
            if group.factor > expected {
                group.factor = expected;
                changed = true;
            }
        }
        changed
    }

    /// Fits every group's factor to its members' sights: residuals less the common factor.
    /// `sight_of` is `None` for who was not there.
    pub(super) fn fit(
        &mut self,
        reference: &Residuals,
        sight_of: impl Fn(usize) -> Option<Sight>,
        learn: bool,
    ) {
        let mut sights = Vec::new();
        for group in &mut self.groups {
            sights.clear();
            let stride = group.members.len().div_ceil(SAMPLE).max(1);
            let sample = group.members.iter().step_by(stride);
            sights.extend(sample.filter_map(|&worker| sight_of(worker)));
            if sights.is_empty() {
                group.factor = group.common.expected();
                continue;
            }
            group.factor = group.common.fit(&sights, reference);
            if learn {
                group.common.learn(group.factor);
            }
        }
    }

    /// A round's residuals (less common factor and level, in spreads), and now and then a search.
    pub(super) fn learn(&mut self, residuals: impl Iterator<Item = (usize, f64)>) {
        let slot = (self.rounds % WINDOW as u64) as usize;
        for row in &mut self.window {
            row[slot] = 0.0;
        }
        for (worker, residual) in residuals {
            if worker >= self.window.len() {
                self.window.resize(worker + 1, [0.0; WINDOW]);
                self.of.resize(worker + 1, None);
            }
            self.window[worker][slot] = (residual as f32).clamp(-CLIP, CLIP);
        }
        self.rounds += 1;
        if self.rounds >= EVERY && self.rounds.is_multiple_of(EVERY) {
            self.search();
        }
    }

    fn search(&mut self) {
        let centred: Vec<[f32; WINDOW]> = self.window.iter().map(centre).collect();
        // A leader's sum of members' residuals, and the members.
        let mut found: Vec<([f32; WINDOW], Vec<usize>)> = Vec::new();
        for (worker, row) in centred.iter().enumerate() {
            let nearest = found
                .iter()
                .map(|(sum, _)| correlation(row, sum))
                .enumerate()
                .max_by(|a, b| a.1.total_cmp(&b.1));
            match nearest {
                Some((leader, alike)) if alike > ALIKE => {
                    let (sum, members) = &mut found[leader];
                    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                    members.push(worker);
                }
                _ if found.len() < LEADERS && row.iter().any(|x| x.abs() > 2.0) => {
                    found.push((*row, vec![worker]));
                }
                _ => {}
            }
        }
        for (_, members) in found.into_iter().filter(|(_, members)| members.len() >= LEAST) {
            self.adopt(members);
        }
    }

    /// What was found becomes the known group that most of its members are in, or a new one.
    fn adopt(&mut self, members: Vec<usize>) {
        let mut overlap = vec![0usize; self.groups.len()];
        for &worker in &members {
            if let Some(group) = self.of[worker] {
                overlap[group] += 1;
            }
        }
        let known = (0..overlap.len()).max_by_key(|&group| overlap[group]);
        let group = match known.filter(|&group| 2 * overlap[group] > members.len()) {
            Some(group) => group,
            None => {
                let common = Common::default();
                self.groups.push(Group { members: Vec::new(), common, factor: 0.0 });
                self.groups.len() - 1
            }
        };
        for worker in members {
            if let Some(other) = self.of[worker].filter(|&other| other != group) {
                self.groups[other].members.retain(|&member| member != worker);
            }
            if self.of[worker] != Some(group) {
                self.of[worker] = Some(group);
                self.groups[group].members.push(worker);
            }
        }
        self.drop_small();
    }

    fn drop_small(&mut self) {
        let mut kept = Vec::new();
        for group in std::mem::take(&mut self.groups) {
            if group.members.len() >= LEAST {
                group.members.iter().for_each(|&worker| self.of[worker] = Some(kept.len()));
                kept.push(group);
            } else {
                group.members.iter().for_each(|&worker| self.of[worker] = None);
            }
        }
        self.groups = kept;
    }

    /// The members of each group.
    #[cfg(test)]
    pub(super) fn members(&self) -> Vec<Vec<usize>> {
        self.groups.iter().map(|group| group.members.clone()).collect()
    }
}

fn centre(row: &[f32; WINDOW]) -> [f32; WINDOW] {
    let mean = row.iter().sum::<f32>() / WINDOW as f32;
    row.map(|x| x - mean)
}

fn correlation(a: &[f32; WINDOW], b: &[f32; WINDOW]) -> f64 {
    let (mut product, mut square_a, mut square_b) = (0.0f32, 1e-6f32, 1e-6f32);
    for (x, y) in a.iter().zip(b) {
        product += x * y;
        square_a += x * x;
        square_b += y * y;
    }
    f64::from(product) / f64::from(square_a * square_b).sqrt()
}
