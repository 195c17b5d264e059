//! The colours of heat maps, and PNG encoding.

use base64::{Engine, engine::general_purpose::STANDARD};

/// Colours between the lowest and the highest value.
pub(crate) const STEPS: u8 = 60;

/// The palette index of an absent value.
pub(crate) const ABSENT: u8 = 0;

/// The viridis colour map: its lightness rises evenly, and colour-blind readers can tell its colours
/// apart.
const VALUES: [[u8; 3]; 9] = [
    [68, 1, 84],
    [71, 44, 122],
    [59, 81, 139],
    [44, 113, 142],
    [33, 144, 141],
    [39, 173, 129],
    [92, 200, 99],
    [170, 220, 50],
    [253, 231, 37],
];

/// Dark to light red, for lower bounds.
const LOWER_BOUNDS: [[u8; 3]; 3] = [[90, 10, 40], [190, 40, 80], [255, 160, 150]];

/// The palette index of a value at position `at`, from 0 (lowest) to 1 (highest).
pub(crate) fn colour(at: f64, lower_bound: bool) -> u8 {
    let step = (at.clamp(0.0, 1.0) * f64::from(STEPS - 1)).round() as u8;
    1 + step + if lower_bound { STEPS } else { 0 }
}

/// The CSS colour of a value at position `at`.
pub(crate) fn css(at: f64) -> String {
    let [r, g, b] = blend(&VALUES, at);
    format!("rgb({r},{g},{b})")
}

/// An image of palette indices, row by row, as a `data:` URI of a PNG.
pub(crate) fn data_uri(width: usize, height: usize, pixels: &[u8]) -> String {
    let png = png(width, height, pixels).expect("writing to memory does not fail");
    format!("data:image/png;base64,{}", STANDARD.encode(png))
}

fn png(width: usize, height: usize, pixels: &[u8]) -> Result<Vec<u8>, png::EncodingError> {
    let ramp = |stops: &'static [[u8; 3]]| {
        (0..STEPS).flat_map(|i| blend(stops, f64::from(i) / f64::from(STEPS - 1)))
    };
    let palette: Vec<u8> =
        [0; 3].into_iter().chain(ramp(&VALUES)).chain(ramp(&LOWER_BOUNDS)).collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    encoder.set_filter(png::Filter::NoFilter);
    encoder.set_palette(palette);
    encoder.set_trns(vec![0]);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

fn blend(stops: &[[u8; 3]], at: f64) -> [u8; 3] {
    let place = at.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
    let first = (place as usize).min(stops.len() - 2);
    let rest = place - first as f64;
    std::array::from_fn(|i| {
        let (a, b) = (f64::from(stops[first][i]), f64::from(stops[first + 1][i]));
        (a + (b - a) * rest).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_png_reads_back_as_it_was_drawn() {
        let pixels: Vec<u8> = (0..6 * 4).map(|i| i % (2 * STEPS)).collect();
        let bytes = png(6, 4, &pixels).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut read = vec![0; 6 * 4];
        reader.next_frame(&mut read).unwrap();
        assert_eq!(read, pixels);
    }

    #[test]
    fn colours_run_from_end_to_end() {
        assert_eq!((colour(-1.0, false), colour(2.0, false)), (1, STEPS));
        assert_eq!((colour(0.0, true), colour(1.0, true)), (STEPS + 1, 2 * STEPS));
        assert_eq!((css(0.0), css(1.0)), ("rgb(68,1,84)".into(), "rgb(253,231,37)".into()));
    }
}
