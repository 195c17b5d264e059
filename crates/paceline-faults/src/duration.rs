//! Durations as people write them: `90`, `90s`, `1.5m`, `200ms`.

use std::time::Duration;

const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Reads a duration. A bare number is seconds; `None` if the text is no duration.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let unit = UNITS.iter().find_map(|(unit, secs)| Some((text.strip_suffix(unit)?, *secs)));
    let (number, secs) = unit.unwrap_or((text, 1.0));
    let number: f64 = number.trim().parse().ok()?;
    Duration::try_from_secs_f64(number * secs).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        let millis = |text: &str| parse_duration(text).map(|time| time.as_millis());
        assert_eq!(millis("90"), Some(90_000));
        assert_eq!(millis("1.5m"), Some(90_000));
        assert_eq!(millis("200ms"), Some(200));
        assert_eq!(millis("2h"), Some(7_200_000));
        for wrong in ["", "soon", "-1s", "NaN", "1e300h"] {
            assert_eq!(millis(wrong), None, "{wrong}");
        }
    }
}
