//! A page and its sections.

use std::{fmt::Write, path::Path};

use crate::{
    Heatmap, LineChart, Table,
    file::{WriteError, write_whole},
    html::Escaped,
};

/// A page of sections, in the order in which they are added.
///
/// ```text
/// Page::new("Run 7").section(Section::new("Rate").text("…").chart(&chart)).write(path)
/// ```
pub struct Page {
    title: String,
    sections: String,
}

impl Page {
    /// A page without sections.
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), sections: String::new() }
    }

    /// Adds a section.
    pub fn section(mut self, section: Section) -> Page {
        self.sections += &section.html();
        self
    }

    /// The page as HTML.
    pub fn html(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
             name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta \
             name=\"color-scheme\" content=\"light dark\">\n<title>{0}</title>\n<style>\n{1}</style>\
             \n</head>\n<body>\n<main>\n<h1>{0}</h1>\n{2}</main>\n</body>\n</html>\n",
            Escaped(&self.title),
            include_str!("style.css"),
            self.sections
        )
    }

    /// Writes the page to a file, as [`write_whole`] does.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        write_whole(path, self.html().as_bytes())
    }
}

/// A heading and the blocks below it, in the order in which they are added. Consecutive charts stand
/// side by side where there is room.
pub struct Section {
    html: String,
    in_figures: bool,
}

impl Section {
    /// A section without blocks. An empty title gives no heading.
    pub fn new(title: &str) -> Section {
        let mut html = "<section>\n".to_owned();
        if !title.is_empty() {
            let _ = writeln!(html, "<h2>{}</h2>", Escaped(title));
        }
        Section { html, in_figures: false }
    }

    /// Adds a paragraph.
    pub fn text(self, text: &str) -> Section {
        self.block(&format!("<p>{}</p>\n", Escaped(text)))
    }

    /// Adds a paragraph in larger type, for the main finding.
    pub fn lead(self, text: &str) -> Section {
        self.block(&format!("<p class=\"lead\">{}</p>\n", Escaped(text)))
    }

    /// Adds a remark in small type.
    pub fn note(self, text: &str) -> Section {
        self.block(&format!("<p class=\"note\">{}</p>\n", Escaped(text)))
    }

    /// Adds a table.
    pub fn table(self, table: &Table) -> Section {
        self.block(&table.html())
    }

    /// Adds a line chart.
    pub fn chart(self, chart: &LineChart) -> Section {
        self.figure(&chart.html())
    }

    /// Adds a heat map.
    pub fn heatmap(self, heatmap: &Heatmap) -> Section {
        self.figure(&heatmap.html())
    }

    fn block(mut self, html: &str) -> Section {
        self.close_figures();
        self.html += html;
        self
    }

    fn figure(mut self, html: &str) -> Section {
        if !self.in_figures {
            self.html += "<div class=\"figures\">\n";
            self.in_figures = true;
        }
        self.html += html;
        self
    }

    fn close_figures(&mut self) {
        if self.in_figures {
            self.html += "</div>\n";
            self.in_figures = false;
        }
    }

    fn html(mut self) -> String {
        self.close_figures();
        self.html + "</section>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_complete_and_fetches_nothing() {
        let mut table = Table::new(["worker", "slower"]);
        table.row(["<w1>", "2.0×"]);
        let section = Section::new("Rate & time")
            .text("a < b")
            .chart(&LineChart::default())
            .chart(&LineChart::default())
            .table(&table)
            .chart(&LineChart::default());
        let html = Page::new("Run <7>").section(section).html();
        assert_eq!(html.matches("<div").count(), html.matches("</div>").count());
        assert_eq!(html.matches("<div class=\"figures\">").count(), 2);
        for text in ["<title>Run &lt;7&gt;</title>", "Rate &amp; time", "&lt;w1&gt;"] {
            assert!(html.contains(text), "{text}");
        }
        for fetched in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!html.contains(fetched), "{fetched}");
        }
    }
}
