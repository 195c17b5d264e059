//! Numbered lines of a text file, with a bounded length.

use std::{
    io::{BufRead, Read},
    path::Path,
};

use super::error::{MAX_LINE, Position, Problem, TraceError};

/// Reads line by line.
pub(super) struct Lines<'a, R> {
    path: &'a Path,
    from: R,
    number: u64,
    buffer: Vec<u8>,
}

/// One line, without its end.
pub(super) struct NumberedLine<'b> {
    /// Counted from 1.
    pub(super) number: u64,
    pub(super) text: &'b [u8],
    /// Whether it ends with a line break; only the last line may not.
    pub(super) ended: bool,
}

impl<'a, R: BufRead> Lines<'a, R> {
    pub(super) fn new(path: &'a Path, from: R) -> Lines<'a, R> {
        Lines { path, from, number: 0, buffer: Vec::new() }
    }

    /// The next line that is not blank.
    pub(super) fn next(&mut self) -> Result<Option<NumberedLine<'_>>, TraceError> {
        let ended = loop {
            self.number += 1;
            self.buffer.clear();
            let limit = MAX_LINE as u64 + 1;
            self.from
                .by_ref()
                .take(limit)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| TraceError::io(self.path, source))?;
            if self.buffer.len() as u64 == limit {
                let place = Position::Line(self.number);
                return Err(TraceError::at(self.path, place, Problem::LineTooLong));
            }
            let ended = self.buffer.last() == Some(&b'\n');
            if !self.buffer.trim_ascii().is_empty() {
                break ended;
            }
            if !ended {
                return Ok(None);
            }
        };
        let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let text =
            if self.number == 1 { text.strip_prefix(BYTE_ORDER).unwrap_or(text) } else { text };
        Ok(Some(NumberedLine { number: self.number, text, ended }))
    }
}

/// The byte order mark that some programs write before UTF-8.
const BYTE_ORDER: &[u8] = b"\xef\xbb\xbf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_are_counted_and_skipped() {
        let text = b"\xef\xbb\xbfa\r\n\n  \nb\n\nlast" as &[u8];
        let mut lines = Lines::new(Path::new("it"), text);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().expect("text") {
            seen.push((line.number, line.text.to_vec(), line.ended));
        }
        let expected =
            [(1, b"a".to_vec(), true), (4, b"b".to_vec(), true), (6, b"last".to_vec(), false)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut lines = Lines::new(Path::new("it"), std::io::BufReader::new(std::io::repeat(b'x')));
        let error = lines.next().err().expect("too long");
        assert_eq!(error.to_string(), "it, line 1: the line is longer than 64 MiB");
    }
}
