//! Parsing and serde for settings that are written as one line of text.

/// Reads a finite number.
pub(crate) fn number(text: &str) -> Option<f32> {
    text.parse().ok().filter(|value: &f32| value.is_finite())
}

/// Reads a count of at least one.
pub(crate) fn count(text: &str) -> Option<u64> {
    // `parse` would take a leading plus sign.
    text.starts_with(|c: char| c.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
        .filter(|&n| n > 0)
}

/// Makes serde read and write a type as the text of its `FromStr` and `Display`.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use serde_as_text;
