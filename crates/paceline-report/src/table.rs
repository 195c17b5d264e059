//! HTML tables.

use std::fmt::Write;

use crate::html::Escaped;

/// A table with a header row. The first column is text; the others are numbers, aligned right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    wide_last: bool,
}

impl Table {
    /// A table without rows. If all header cells are empty, the header row is left out.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Table {
        Table { head: head.into_iter().map(Into::into).collect(), ..Table::default() }
    }

    /// Makes the last column text as well.
    pub fn ending_in_text(mut self) -> Table {
        self.wide_last = true;
        self
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(crate) fn html(&self) -> String {
        let class = if self.wide_last { " class=\"text-last\"" } else { "" };
        let mut html = format!("<div class=\"scroll\"><table{class}>");
        if self.head.iter().any(|cell| !cell.is_empty()) {
            html += "<thead><tr>";
            for cell in &self.head {
                let _ = write!(html, "<th>{}</th>", Escaped(cell));
            }
            html += "</tr></thead>";
        }
        html += "<tbody>";
        for row in &self.rows {
            html += "<tr>";
            for cell in row {
                let _ = write!(html, "<td>{}</td>", Escaped(cell));
            }
            html += "</tr>";
        }
        html + "</tbody></table></div>\n"
    }
}
