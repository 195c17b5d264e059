//! Escapes text for HTML.

use std::fmt;

/// Text with HTML's special characters escaped, and a no-break space before every per cent sign.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.replace(" %", "\u{a0}%");
        let mut rest = text.as_str();
        while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                _ => "&#39;",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_quotes_become_text() {
        let escaped = Escaped("<script>\"a\" & 'b'</script>").to_string();
        assert_eq!(escaped, "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;&lt;/script&gt;");
        assert_eq!(Escaped("wörker 3: 5 %").to_string(), "wörker 3: 5\u{a0}%");
    }
}
