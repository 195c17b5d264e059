//! Finds groups of workers that speed up and slow down together (nodes, switches, users).
//!
//! A window of residuals is kept for every worker. Every few rounds workers are gathered around
//! leaders whose residuals correlate with theirs; a member stays until it is found in another
//! group. O(n) per round, since the number of leaders is bounded.

/// Rounds of residuals kept.
const WINDOW: usize = 64;
/// Correlation with the leader's group that makes a member.
const ALIKE: f64 = 0.6;
/// Least members of a group.
const LEAST: usize = 3;
/// Most leaders in a search.
const LEADERS: usize = 64;
/// Residuals are clipped to this many spreads.
const CLIP: f32 = 4.0;

/// Groups of workers, and the residuals that they are found from.
#[derive(Debug, Clone, Default)]
pub struct Grouping {
    /// Members of each group.
    groups: Vec<Vec<usize>>,
    /// The group of each worker.
    by_worker: Vec<Option<usize>>,
    /// Residuals of each worker, a ring over rounds.
    window: Vec<[f32; WINDOW]>,
    rounds: u64,
}

impl Grouping {
    /// Rounds between searches.
    pub const EVERY: u64 = 16;

    /// The group of a worker.
    pub fn group_of(&self, worker: usize) -> Option<usize> {
        self.by_worker.get(worker).copied().flatten()
    }

    /// The members of each group.
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// The grouping of every `stride`-th worker, renumbered; it finds no further groups.
    pub(crate) fn every(&self, stride: usize) -> Grouping {
        let by_worker = self.by_worker.iter().step_by(stride).copied().collect();
        Grouping { by_worker, ..Grouping::default() }
    }

    /// Learns a round's residuals (less the common factor and the worker's level, in spreads). After a
    /// search it returns, for each current group, which group it was before.
    pub fn learn(
        &mut self,
        residuals: impl Iterator<Item = (usize, f64)>,
    ) -> Option<Vec<Option<usize>>> {
        let slot = (self.rounds % WINDOW as u64) as usize;
        for row in &mut self.window {
            row[slot] = 0.0;
        }
        for (worker, residual) in residuals {
            if worker >= self.window.len() {
                self.window.resize(worker + 1, [0.0; WINDOW]);
                self.by_worker.resize(worker + 1, None);
            }
            self.window[worker][slot] = (residual as f32).clamp(-CLIP, CLIP);
        }
        self.rounds += 1;
        self.rounds.is_multiple_of(Grouping::EVERY).then(|| self.search())
    }

    fn search(&mut self) -> Vec<Option<usize>> {
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
        let mut before: Vec<Option<usize>> = (0..self.groups.len()).map(Some).collect();
        for (_, members) in found.into_iter().filter(|(_, members)| members.len() >= LEAST) {
            self.adopt(members, &mut before);
        }
        before
    }

    /// Merges the members found into the known group that most of them are in, or makes a new group.
    fn adopt(&mut self, members: Vec<usize>, before: &mut Vec<Option<usize>>) {
        let mut overlap = vec![0usize; self.groups.len()];
        for &worker in &members {
            if let Some(group) = self.by_worker[worker] {
                overlap[group] += 1;
            }
        }
        let known = (0..overlap.len()).max_by_key(|&group| overlap[group]);
        let group = match known.filter(|&group| 2 * overlap[group] > members.len()) {
            Some(group) => group,
            None => {
                self.groups.push(Vec::new());
                before.push(None);
                self.groups.len() - 1
            }
        };
        for worker in members {
            if let Some(other) = self.by_worker[worker].filter(|&other| other != group) {
                self.groups[other].retain(|&member| member != worker);
            }
            if self.by_worker[worker] != Some(group) {
                self.by_worker[worker] = Some(group);
                self.groups[group].push(worker);
            }
        }
        self.drop_small(before);
    }

    fn drop_small(&mut self, before: &mut Vec<Option<usize>>) {
        let (mut kept, mut kept_before) = (Vec::new(), Vec::new());
        for (members, was) in std::mem::take(&mut self.groups).into_iter().zip(before.drain(..)) {
            let large = members.len() >= LEAST;
            let group = large.then_some(kept.len());
            members.iter().for_each(|&worker| self.by_worker[worker] = group);
            if large {
                kept.push(members);
                kept_before.push(was);
            }
        }
        (self.groups, *before) = (kept, kept_before);
    }
}

fn centre(row: &[f32; WINDOW]) -> [f32; WINDOW] {
    let mean = row.iter().sum::<f32>() / WINDOW as f32;
    row.map(|x| x - mean)
}

fn correlation(a: &[f32; WINDOW], b: &[f32; WINDOW]) -> f64 {
    // Independent partial sums, so that the loop vectorises.
    const LANES: usize = 16;
    let (mut products, mut squares_a, mut squares_b) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for lane in 0..LANES {
            products[lane] += a[lane] * b[lane];
            squares_a[lane] += a[lane] * a[lane];
            squares_b[lane] += b[lane] * b[lane];
        }
    }
    let sum = |lanes: [f32; LANES]| f64::from(lanes.iter().sum::<f32>());
    sum(products) / ((sum(squares_a) + 1e-6) * (sum(squares_b) + 1e-6)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of five that are slow at different times, and four loners.
    #[test]
    fn workers_that_are_slow_together_are_found() {
        let mut grouping = Grouping::default();
        for round in 0..64u64 {
            let slow = |node: u64| f64::from(u8::from((round / 8) % 4 == node)) * 3.0;
            let residual = |worker: usize| match worker {
                0..5 => slow(1),
                5..10 => slow(3),
                _ => ((round * 7 + worker as u64 * 13) % 5) as f64 - 2.0,
            };
            grouping.learn((0..14).map(|worker| (worker, residual(worker))));
        }
        let mut groups = grouping.groups().to_vec();
        groups.sort();
        assert_eq!(groups, [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]]);
        assert_eq!(grouping.group_of(12), None);
    }
}
