//! Spans of time as people write them: `90`, `90s`, `1.5m`, `200ms`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize, de};

/// A span of time in a setting. A bare number is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_duration(text)
            .map(Span)
            .ok_or_else(|| format!("`{text}` is no span of time: write 90, 90s, 1.5m, 2h or 200ms"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_nanos() {
            0 => write!(f, "{}s", self.0.as_secs()),
            _ => write!(f, "{}ms", self.0.as_secs_f64() * 1e3),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Whole(u64),
            Number(f64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Whole(secs) => secs.to_string(),
            Written::Number(secs) => secs.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(de::Error::custom)
    }
}

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

    #[test]
    fn what_is_no_span_is_named() {
        let error = "soon".parse::<Span>().unwrap_err();
        assert_eq!(error, "`soon` is no span of time: write 90, 90s, 1.5m, 2h or 200ms");
    }

    #[test]
    fn spans_print_so_that_they_read_back() {
        for text in ["90s", "1.5s", "200ms", "0.25ms"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse(), Ok(span));
        }
    }
}
