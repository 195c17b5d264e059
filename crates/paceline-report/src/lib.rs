//! Reports as self-contained HTML pages: text, tables, charts and heat maps in one file.
//!
//! A page fetches nothing. Charts are inline SVG, heat maps are embedded PNG images, and the style
//! sheet is part of the page and follows the reader's light or dark theme.
//!
//! [`Usage`] is the error that every command reports for flags or settings that cannot be used.

mod chart;
mod file;
mod heatmap;
mod html;
mod number;
mod page;
mod palette;
mod scale;
mod table;
mod usage;

pub use chart::{Axis, LineChart, Series};
pub use file::{WriteError, write_whole};
pub use heatmap::{Heatmap, HeatmapCell};
pub use number::short;
pub use page::{Page, Section};
pub use table::Table;
pub use usage::Usage;
