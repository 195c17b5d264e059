//! The distribution of a factor: a mixture, and its mass on the cells of a lattice.

use crate::{
    math::{exp, sigmoid},
    mixture::{PARTS, WIDTH, quantile, shares},
};

/// Probability and scale of a factor where no network expects it.
const ELSEWHERE: (f32, f32) = (0.004, 3.0);
/// The finest cell, and the most cells for the cluster and for a group.
const FINEST: f32 = 0.2;
const CELLS: usize = 24;
const GROUP_CELLS: usize = 72;
/// Tail probability at either end that is cut off the cells.
const LEVEL: f32 = 0.003;

/// The lattice: multiples of a step, in units of the cluster's spread.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Lattice {
    size: f32,
    /// The cluster's spread, in log time.
    pub(crate) unit: f32,
}

impl Lattice {
    /// The finest lattice that covers the mixtures of the cluster's and the groups' factors.
    pub(crate) fn covering(cluster: &[f32], groups: &[f32], unit: f32) -> Lattice {
        let width = |params: &[f32]| {
            let (from, to) = ends(params);
            to - from
        };
        let widest = groups.chunks_exact(WIDTH).map(width).fold(0.0, f32::max);
        let size = (width(cluster) / CELLS as f32).max(widest / GROUP_CELLS as f32).max(FINEST);
        Lattice { size, unit }
    }

    pub(crate) fn at(&self, cell: i32) -> f32 {
        cell as f32 * self.size
    }

    /// The position of a factor among the cells.
    pub(crate) fn position(&self, at: f32) -> f32 {
        at / self.size
    }

    /// The number of cells in this width.
    pub(crate) fn merged(&self, width: f32) -> usize {
        (width / self.size) as usize
    }
}

/// A factor's distribution.
#[derive(Debug, Clone, Default)]
pub(crate) struct Factor {
    /// Share, location and scale of each component.
    parts: Vec<(f32, f32, f32)>,
    /// The first cell.
    pub(crate) from: i32,
    /// Probability of each cell.
    pub(crate) mass: Vec<f32>,
}

impl Factor {
    /// The distribution of a mixture on a lattice.
    pub(crate) fn from_mixture(params: &[f32], step: &Lattice) -> Factor {
        let parts = parts(params);
        let (from, to) = ends(params);
        let from = step.position(from).floor() as i32;
        let to = (step.position(to).ceil() as i32).max(from + 1);
        let below = |cell: f32| -> f32 {
            let at = cell * step.size;
            parts.iter().map(|(share, middle, scale)| share * sigmoid((at - middle) / scale)).sum()
        };
        let mut mass = Vec::with_capacity((to - from + 1) as usize);
        let mut before = 0.0;
        for cell in from..=to {
            let now = if cell == to { 1.0 } else { below(cell as f32 + 0.5) };
            mass.push((now - before).max(1e-12));
            before = now;
        }
        Factor { parts, from, mass }
    }

    /// The factor of workers without a group: always zero.
    pub(crate) fn none() -> Factor {
        Factor { parts: Vec::new(), from: 0, mass: vec![1.0] }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.parts.is_empty()
    }

    /// The mean.
    pub(crate) fn center(&self, step: &Lattice) -> f32 {
        let cells = self.mass.iter().enumerate();
        cells.map(|(i, mass)| mass * step.at(self.from + i as i32)).sum()
    }

    /// A draw, from two numbers between 0 and 1.
    pub(crate) fn draw(&self, part: f32, level: f32) -> f32 {
        let mut below = 0.0;
        let found = self.parts.iter().find(|(share, ..)| {
            below += share;
            part < below
        });
        found.or(self.parts.first()).map_or(0.0, |&(_, at, scale)| quantile(at, scale, level))
    }
}

fn parts(params: &[f32]) -> Vec<(f32, f32, f32)> {
    let shares = shares(&params[..PARTS]);
    let center: f32 = (0..PARTS).map(|k| shares[k] * params[PARTS + k]).sum();
    let (rare, far) = ELSEWHERE;
    let part = |k: usize| {
        let scale = exp(params[2 * PARTS + k]).clamp(1e-3, 20.0);
        (shares[k] * (1.0 - rare), params[PARTS + k].clamp(-60.0, 60.0), scale)
    };
    (0..PARTS).map(part).chain([(rare, center.clamp(-60.0, 60.0), far)]).collect()
}

/// The ends of the components that matter.
fn ends(params: &[f32]) -> (f32, f32) {
    let mut ends = (f32::INFINITY, f32::NEG_INFINITY);
    for (share, at, scale) in parts(params).into_iter().filter(|part| part.0 > 1e-4) {
        // A rare component ends sooner.
        let level = (LEVEL / share).min(0.1);
        ends.0 = ends.0.min(quantile(at, scale, level));
        ends.1 = ends.1.max(quantile(at, scale, 1.0 - level));
    }
    ends
}
