//! Parsing of text fields.

use super::error::{MAX_NAME, Problem, shown};
use crate::Cell;

/// A run-time: a positive number, `>=` and a positive number, or nothing.
pub(super) fn cell(text: &str) -> Result<Cell, Problem> {
    let bad = || Problem::RunTime(shown(text));
    if text.is_empty() {
        return Ok(Cell::Absent);
    }
    let (number, censored) = match text.strip_prefix(">=") {
        Some(number) => (number.trim_start(), true),
        None => (text, false),
    };
    let x: f64 = number.parse().map_err(|_| bad())?;
    run_time(x).ok_or_else(bad)?;
    Ok(if censored { Cell::Censored(x) } else { Cell::Observed(x) })
}

/// The number, if it can be a run-time.
pub(super) fn run_time(x: f64) -> Option<f64> {
    (x > 0.0 && x.is_finite()).then_some(x)
}

/// The number of an iteration. Programs that know only floats write `3.0`.
pub(super) fn iteration(text: &str) -> Result<i64, Problem> {
    text.parse()
        .ok()
        .or_else(|| text.parse().ok().and_then(whole))
        .ok_or_else(|| Problem::Iteration(shown(text)))
}

/// The whole number that a float is, if it is one.
pub(super) fn whole(x: f64) -> Option<i64> {
    (x.fract() == 0.0 && x.abs() <= (1u64 << 53) as f64).then_some(x as i64)
}

/// A worker's name.
pub(super) fn worker(text: &str) -> Result<&str, Problem> {
    if text.is_empty() || text.len() > MAX_NAME {
        return Err(Problem::Worker(shown(text)));
    }
    Ok(text)
}

/// The fields of a line of CSV, without surrounding spaces; inside a quoted field two quotes stand for
/// one.
pub(super) fn split(
    line: &str,
) -> impl Iterator<Item = Result<std::borrow::Cow<'_, str>, Problem>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?.trim_start();
        if let Some(quoted) = text.strip_prefix('"') {
            return Some(match unquote(quoted) {
                Some((field, after)) => {
                    rest = after;
                    Ok(field.into())
                }
                None => {
                    rest = None;
                    Err(Problem::Quote)
                }
            });
        }
        let (field, after) = match text.split_once(',') {
            Some((field, after)) => (field, Some(after)),
            None => (text, None),
        };
        rest = after;
        Some(Ok(field.trim_end().into()))
    })
}

/// The field up to its closing quote, and the rest of the line after the comma.
fn unquote(text: &str) -> Option<(String, Option<&str>)> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None if after.trim().is_empty() => return Some((field, None)),
            None => {
                let after = after.trim_start().strip_prefix(',')?;
                return Some((field, Some(after)));
            }
        }
    }
}

/// A field as it is written so that [`split`] gives it back.
pub(crate) fn quoted(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains([',', '"']) || text.trim() != text {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_numbers_bounds_or_nothing() {
        assert_eq!(cell("1.5"), Ok(Cell::Observed(1.5)));
        assert_eq!(cell("2e-3"), Ok(Cell::Observed(0.002)));
        assert_eq!(cell(">=3"), Ok(Cell::Censored(3.0)));
        assert_eq!(cell(">= 3"), Ok(Cell::Censored(3.0)));
        assert_eq!(cell(""), Ok(Cell::Absent));
        for bad in ["0", "-1", "NaN", "inf", "1,5", "fast", ">=", ">=0", "<=1", "1 s"] {
            assert_eq!(cell(bad), Err(Problem::RunTime(bad.to_owned())));
        }
    }

    #[test]
    fn iterations_are_whole() {
        assert_eq!(iteration("-7"), Ok(-7));
        assert_eq!(iteration("3.0"), Ok(3));
        for bad in ["", "3.5", "NaN", "1e300", "third"] {
            assert_eq!(iteration(bad), Err(Problem::Iteration(bad.to_owned())));
        }
    }

    #[track_caller]
    fn check(line: &str, expected: Result<&[&str], Problem>) {
        let fields: Result<Vec<_>, _> = split(line).collect();
        let fields = fields.as_ref().map(|f| f.iter().map(AsRef::as_ref).collect::<Vec<&str>>());
        assert_eq!(fields, expected.as_ref().map(|f| f.to_vec()));
    }

    #[test]
    fn lines_split_at_commas_outside_quotes() {
        check("a, b ,c", Ok(&["a", "b", "c"]));
        check("a,,", Ok(&["a", "", ""]));
        check("", Ok(&[""]));
        check(r#""a,b" ,"say ""hi""",c"#, Ok(&["a,b", "say \"hi\"", "c"]));
        check(r#"a" b,c"#, Ok(&["a\" b", "c"]));
        check(r#""open,c"#, Err(Problem::Quote));
        check(r#""a"b,c"#, Err(Problem::Quote));
    }

    #[test]
    fn quoted_fields_come_back() {
        for field in ["w0", "a,b", " a ", "\"", "\"a\"", "say \"hi\", you", "ü"] {
            let line = format!("{},{}", quoted(field), quoted(field));
            check(&line, Ok(&[field, field]));
        }
    }
}
