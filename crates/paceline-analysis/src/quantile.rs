//! Quantiles of unsorted numbers.

/// The `q`-quantile (0 to 1) by the nearest rank, reordering the values; NaN of none.
pub(crate) fn quantile(values: &mut [f64], q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let at = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

/// The median, reordering the values: the middle one, or between the middle two; NaN of none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let even = values.len().is_multiple_of(2);
    let (below, &mut upper, _) = values.select_nth_unstable_by(values.len() / 2, f64::total_cmp);
    match even {
        true => (below.iter().copied().fold(f64::NEG_INFINITY, f64::max) + upper) / 2.0,
        false => upper,
    }
}

/// How far values lie from their median, as a standard deviation that outliers do not move: 1.4826
/// times the median distance, which is the standard deviation of normal values.
pub(crate) fn robust_sd(values: &[f64], median_of_them: f64) -> f64 {
    let mut distances: Vec<f64> = values.iter().map(|x| (x - median_of_them).abs()).collect();
    1.4826 * median(&mut distances)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_sorted_values() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        for (q, expected) in
            [(0.0, 1.0), (0.2, 1.0), (0.21, 2.0), (0.5, 3.0), (0.9, 5.0), (1.0, 5.0)]
        {
            assert_eq!(quantile(&mut values.clone(), q), expected, "{q}");
        }
        assert_eq!(median(&mut values.clone()), 3.0);
        assert_eq!(median(&mut values[..4].to_vec()), 3.0);
        assert_eq!(median(&mut [2.0, 1.0]), 1.5);
        assert_eq!(median(&mut [7.0]), 7.0);
        assert!(median(&mut []).is_nan() && quantile(&mut [], 0.5).is_nan());
    }

    #[test]
    fn one_outlier_does_not_move_the_spread() {
        let mut values: Vec<f64> = (0..101).map(f64::from).collect();
        let calm = robust_sd(&values, 50.0);
        values[100] = 1e9;
        assert!((robust_sd(&values, 50.0) / calm - 1.0).abs() < 0.05);
    }
}
