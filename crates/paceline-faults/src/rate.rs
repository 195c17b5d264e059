//! Rates of a link as `tc` writes them: `500kbit`, `10mbit`, `1gbit`.

use std::{fmt, str::FromStr};

/// Bits per second, 8 kbit to 100 gbit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

const UNITS: [(&str, f64); 3] = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];

impl Rate {
    /// Bits per second.
    pub fn bits(self) -> u64 {
        self.0
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = UNITS.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, *bits)));
        unit.and_then(|(number, bits)| Some(number.parse::<f64>().ok()? * bits))
            .filter(|bits| (8e3..=1e11).contains(bits))
            .map(|bits| Rate(bits.round() as u64))
            .ok_or_else(|| format!("`{text}` is no rate: write 500kbit, 10mbit or 1gbit"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}kbit", self.0 as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_as_tc_writes_them_and_read_back() {
        for (text, bits) in [("500kbit", 500_000), ("1.5mbit", 1_500_000), ("1gbit", 1_000_000_000)]
        {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.bits(), bits);
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        for wrong in ["", "10", "10mb", "mbit", "0mbit", "-1mbit", "NaNmbit", "1kbit", "101gbit"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
