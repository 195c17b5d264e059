//! Inference of a round's factors from each worker's deviation from its prediction.

use crate::{
    Seen,
    math::{exp, ln, squash},
    mixture::{PARTS, WIDTH, shares},
    nets::{Emission, FactorNets},
    shift::{Deviation, most_likely},
    state::Mode,
    tape::{NONE, Tape, Var},
    weights::SUMMARY,
};

/// A posterior over factors.
pub(crate) struct Posterior {
    /// A sample, or the mean.
    pub(crate) at: Var,
    pub(crate) mean: Vec<f32>,
    pub(crate) prior: Var,
    /// A one-draw estimate of the divergence from the prior.
    pub(crate) divergence: Var,
    /// The prior's mean.
    pub(crate) expected: Vec<f32>,
    /// Workers observed, and workers in all.
    pub(crate) counts: Vec<(f32, f32)>,
}

/// Every worker's deviation from its prediction, and its row.
pub(crate) struct DeviationsByRow {
    pub(crate) offs: Vec<Deviation>,
    pub(crate) rows: Vec<u32>,
}

/// A round during inference.
pub(crate) struct RoundInference<'a> {
    pub(crate) seen: &'a Seen,
    pub(crate) unit: f32,
    pub(crate) tape: &'a mut Tape,
    /// Location of each worker's core component.
    pub(crate) locations: Vec<f32>,
    pub(crate) scales: Vec<f32>,
}

impl RoundInference<'_> {
    pub(crate) fn read(&mut self, emission: &Emission) {
        let first = |all: &[f32]| all.chunks_exact(PARTS).map(|row| row[0]).collect::<Vec<f32>>();
        self.locations = first(self.tape.value(emission.locations));
        self.scales = first(self.tape.value(emission.log_scales)).into_iter().map(exp).collect();
    }

    /// The change of predictions, in units: zero, but with a gradient.
    pub(crate) fn located(&mut self, emission: &Emission) -> Var {
        let location = self.tape.columns(emission.locations, 0, 1);
        let here = self.tape.column(&self.locations);
        let moves = self.tape.sub(location, here);
        self.tape.scale(moves, 1.0 / self.unit)
    }

    /// [`located`](Self::located), plus the change of the cluster's factor.
    pub(crate) fn beyond(&mut self, located: Var, cluster: &Posterior) -> Var {
        let here = self.tape.value(cluster.at).to_vec();
        let here = self.tape.column(&here);
        let moves = self.tape.sub(cluster.at, here);
        let moves = self.tape.gather(moves, &vec![0; self.locations.len()]);
        self.tape.add(located, moves)
    }

    /// Every worker's deviation from its prediction, less a given factor.
    pub(crate) fn offs(&self, beyond: impl Fn(usize) -> f32) -> Vec<Deviation> {
        (0..self.locations.len())
            .map(|i| {
                let by = (self.seen.log_times[i] - self.locations[i]) / self.unit - beyond(i);
                let observed = self.seen.observed[i];
                Deviation { by, per_scale: self.unit / self.scales[i], observed }
            })
            .collect()
    }

    /// The posterior of each row's factor, by the inference network from a summary of its workers.
    pub(crate) fn infer(
        &mut self,
        common: &FactorNets,
        prior: Var,
        moments: &[(f32, f32)],
        whole: &DeviationsByRow,
        located: Option<Var>,
        mode: &mut Mode<'_>,
    ) -> Posterior {
        let rows = moments.len();
        let mut all: Vec<Vec<Deviation>> = vec![Vec::new(); rows];
        for (off, &row) in whole.offs.iter().zip(&whole.rows).filter(|(_, row)| **row != NONE) {
            all[row as usize].push(*off);
        }
        let mut shifts = Vec::with_capacity(rows);
        let mut summary = Vec::with_capacity(rows * SUMMARY);
        let (mut found, mut per_root, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        let (mut gains, mut told) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        let mut counts = Vec::with_capacity(rows);
        for (&(mean, spread), offs) in moments.iter().zip(&all) {
            let shift = most_likely(offs, mean);
            let count = offs.len() as f32;
            let seen = offs.iter().filter(|off| off.observed).count() as f32;
            summary.extend([
                0.25 * mean,
                squash(shift.at - mean),
                (shift.at - mean).clamp(-1.0, 1.0),
                0.5 * ln(spread),
                0.25 * ln(1.0 + seen),
                seen / count.max(1.0),
                0.125 * ln(shift.information),
            ]);
            found.push(shift.at - mean);
            shifts.push(shift);
            // If all were normal, the posterior would be Kalman's; the network corrects it.
            let known = 1.0 / (spread * spread);
            gains.push(ln(shift.information / known));
            told.push(shift.information / (shift.information + known));
            per_root.push(1.0 / (shift.information + known).sqrt());
            expected.push(mean);
            counts.push((seen, count));
        }
        let tape = &mut *self.tape;
        let summary = tape.leaf(rows, SUMMARY, &summary);
        let (trust, correction, log_spread) = common.inference(tape, summary, &gains);
        let (mut found, per_root) = (tape.column(&found), tape.column(&per_root));
        if let Some(located) = located {
            // The estimate moves with the predictions that it is measured from; without this term,
            // gradients would push the two against each other for ever.
            let pairs = whole.offs.iter().zip(&whole.rows);
            let weights: Vec<f32> = pairs
                .map(|(off, &row)| match row {
                    NONE => 0.0,
                    row => shifts[row as usize].moves_with(off),
                })
                .collect();
            let moves = tape.pool(located, rows, &whole.rows, &weights);
            found = tape.add(found, moves);
        }
        let by_data = tape.mul(trust, found);
        let correction = tape.mul(correction, per_root);
        // Without information there is nothing to correct.
        let told = tape.column(&told);
        let correction = tape.mul(correction, told);
        let mean = tape.column(&expected);
        let mean = tape.add(mean, by_data);
        let mean = tape.add(mean, correction);
        let means = tape.value(mean).to_vec();
        // The terms of log q that do not depend on the weights.
        let mut fixed: f32 = tape.value(per_root).iter().map(|&root| -ln(root) - 0.919).sum();
        let at = match &mut mode.noise {
            None => mean,
            Some(noise) => {
                let draws: Vec<f32> = (0..rows).map(|_| noise()).collect();
                fixed -= draws.iter().map(|draw| 0.5 * draw * draw).sum::<f32>();
                let draws = tape.column(&draws);
                let spread = tape.exp(log_spread);
                let spread = tape.mul(spread, per_root);
                let off = tape.mul(spread, draws);
                tape.add(mean, off)
            }
        };
        // log q − log p.
        let likely = tape.mixture(prior, at, &vec![true; rows]);
        let both = tape.add(log_spread, likely);
        let both = tape.sum(both);
        let divergence = tape.scale(both, -1.0);
        let fixed = tape.column(&[fixed]);
        let divergence = tape.add(divergence, fixed);
        Posterior { at, mean: means, prior, divergence, expected, counts }
    }

    /// The log likelihood of `truth`.
    pub(crate) fn likelihood(
        &mut self,
        emission: &Emission,
        moved_by: Var,
        wider: Option<Var>,
        truth: &Seen,
    ) -> Var {
        let tape = &mut *self.tape;
        let moved = tape.concat(&[moved_by; PARTS]);
        let locations = tape.add(emission.locations, moved);
        let log_scales = match wider {
            None => emission.log_scales,
            Some(wider) => {
                let none = tape.column(&vec![0.0; truth.workers.len()]);
                // A group's factor does not widen stalls.
                let wider = tape.concat(&[wider, wider, none]);
                tape.add(emission.log_scales, wider)
            }
        };
        let params = tape.concat(&[emission.logits, locations, log_scales]);
        let target = tape.column(&truth.log_times);
        let likely = tape.mixture(params, target, &truth.observed);
        tape.sum(likely)
    }
}

/// Mean and spread of each row's mixture.
pub(crate) fn prior_moments(params: &[f32]) -> Vec<(f32, f32)> {
    params
        .chunks_exact(WIDTH)
        .map(|row| {
            let shares = shares(&row[..PARTS]);
            let (mut mean, mut square) = (0.0, 0.0);
            for k in 0..PARTS {
                let (at, scale) = (row[PARTS + k], exp(row[2 * PARTS + k]));
                // A logistic's variance is π²/3 times its scale's square.
                mean += shares[k] * at;
                square += shares[k] * (3.29 * scale * scale + at * at);
            }
            (mean, (square - mean * mean).max(1e-4).sqrt())
        })
        .collect()
}
