//! What happens to some workers at a stated round.

use std::ops::Range;

/// Something that happens once. Its moment is a round, whichever way phases pass.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Incident {
    /// From a round on these workers take `factor` times as long.
    Shift { at: u64, workers: Range<usize>, factor: f64 },
    /// In these rounds these workers are absent.
    Failure { rounds: Range<u64>, workers: Range<usize> },
}

impl Incident {
    /// Does to a round's run-times what it does.
    pub(super) fn touch(&self, round: u64, row: &mut [f64]) {
        match self {
            Incident::Shift { at, workers, factor } if round >= *at => {
                row[workers.clone()].iter_mut().for_each(|x| *x *= factor);
            }
            Incident::Failure { rounds, workers } if rounds.contains(&round) => {
                row[workers.clone()].fill(f64::NAN);
            }
            _ => {}
        }
    }
}

/// The node of worker `i` of `n`: nodes are filled in order, as evenly as they can be.
pub(super) fn node_of(i: usize, nodes: usize, n: usize) -> usize {
    i * nodes / n
}

/// The workers of a node.
pub(super) fn workers_of(node: usize, nodes: usize, n: usize) -> Range<usize> {
    (node * n).div_ceil(nodes)..((node + 1) * n).div_ceil(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_is_among_its_nodes_workers() {
        for (n, nodes) in [(158, 4), (16, 4), (2175, 32), (48, 6), (7, 3), (5, 5), (9, 1)] {
            for node in 0..nodes {
                let expected: Vec<usize> =
                    (0..n).filter(|&i| node_of(i, nodes, n) == node).collect();
                assert_eq!(workers_of(node, nodes, n).collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn incidents_touch_their_workers_in_their_rounds() {
        let shift = Incident::Shift { at: 2, workers: 0..1, factor: 3.0 };
        let failure = Incident::Failure { rounds: 1..3, workers: 1..2 };
        let touched = |incident: &Incident, round| {
            let mut row = [1.0, 1.0];
            incident.touch(round, &mut row);
            row
        };
        assert_eq!(touched(&shift, 1), [1.0, 1.0]);
        assert_eq!(touched(&shift, 2), [3.0, 1.0]);
        assert_eq!(touched(&failure, 0), [1.0, 1.0]);
        assert!(touched(&failure, 2)[1].is_nan());
        assert_eq!(touched(&failure, 3), [1.0, 1.0]);
    }
}
