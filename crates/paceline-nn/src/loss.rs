//! Softmax cross-entropy.

use crate::LossSum;

/// Adds up −log softmax(scores)\[label\] over samples and puts its gradient with respect to every
/// score into `dscores`. Both slices have one row of scores per label.
pub(crate) fn cross_entropy(scores: &[f32], labels: &[u8], dscores: &mut [f32]) -> LossSum {
    let mut sum = LossSum::default();
    let classes = scores.len() / labels.len();
    let rows = scores.chunks_exact(classes).zip(dscores.chunks_exact_mut(classes));
    for ((scores, dscores), &label) in rows.zip(labels) {
        let label = usize::from(label);
        let best = highest(scores);
        let mut total = 0.0;
        for (dscore, score) in dscores.iter_mut().zip(scores) {
            // The highest score is taken off everywhere, so that no power overflows.
            *dscore = (score - scores[best]).exp();
            total += *dscore;
        }
        for dscore in dscores.iter_mut() {
            *dscore /= total;
        }
        dscores[label] -= 1.0;
        sum += LossSum {
            loss: f64::from(total.ln() + scores[best] - scores[label]),
            correct: u32::from(best == label),
            samples: 1,
        };
    }
    sum
}

/// Index of the highest score, the first of equals.
fn highest(scores: &[f32]) -> usize {
    (1..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_cost_the_logarithm_of_the_classes() {
        let mut d = [0.0; 4];
        let sum = cross_entropy(&[7.0; 4], &[2], &mut d);
        assert!((sum.loss - 4f64.ln()).abs() < 1e-6);
        assert_eq!(d, [0.25, 0.25, -0.75, 0.25]);
        assert_eq!((sum.correct, sum.samples), (0, 1));
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let mut d = [0.0; 4];
        let sum = cross_entropy(&[1e4, -1e4, -1e4, 1e4], &[0, 0], &mut d);
        assert_eq!(sum, LossSum { loss: 2e4, correct: 1, samples: 2 });
        assert_eq!(d, [0.0, 0.0, -1.0, 1.0]);
    }
}
