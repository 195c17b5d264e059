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

pub(crate) use chart::{Axis, LineChart, Series};
pub(crate) use file::write_whole;
pub(crate) use number::short;
pub(crate) use picture::{Picture, Shade};
pub(crate) use sheet::{Page, Section};
pub(crate) use table::Table;
