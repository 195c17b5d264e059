//! Pages that need nothing but a browser: text, tables and charts in one file.
//!
//! Nothing is fetched: charts are inline SVG, pictures are embedded PNG, the style is in the page and
//! follows the reader's light or dark theme.

mod chart;
mod file;
mod html;
mod number;
mod paint;
mod picture;
mod scale;
mod sheet;
mod table;

pub use chart::{Axis, LineChart, Series};
pub use file::{WriteError, write_whole};
pub use number::short;
pub use picture::{Picture, Shade};
pub use sheet::{Page, Section};
pub use table::Table;
