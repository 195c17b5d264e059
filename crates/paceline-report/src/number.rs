//! Formats numbers for people.

/// A number with three significant digits; whole numbers in full, with thousands separated: `1e-4`,
/// `0.00123`, `12 300`. A dash where the number is not finite.
pub fn short(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return if x == 0.0 { "0".to_owned() } else { "–".to_owned() };
    }
    let size = x.abs();
    if !(1e-3..1e7).contains(&size) {
        return format!("{x:.1e}").replace(".0e", "e");
    }
    if size >= 999.5 || (x.fract() == 0.0 && size >= 100.0) {
        return grouped(x);
    }
    let decimals = (2 - size.log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{x:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn grouped(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 && digits.len() > 4 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    if x < 0.0 { format!("−{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_no_trailing_zeros() {
        for (x, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.5, "0.5"),
            (1.2345, "1.23"),
            (12.345, "12.3"),
            (123.45, "123"),
            (999.6, "1000"),
            (2175.0, "2175"),
            (10_000.0, "10\u{202f}000"),
            (0.001, "0.001"),
            (0.0012345, "0.00123"),
            (0.0001, "1e-4"),
            (1e-9, "1e-9"),
            (1.5e-9, "1.5e-9"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(short(x), expected);
        }
    }
}
