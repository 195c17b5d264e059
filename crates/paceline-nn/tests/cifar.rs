//! The reader of CIFAR-10's binary files, on files made here.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_nn::{CifarFault, Data, DataError, DataShape, DataSource, Dataset, Split};
use tempfile::TempDir;

const RECORD: usize = 3073;

/// A record whose pixel `i` is red `i`, green `i` + 1 and blue `i` + 2, modulo 256.
fn record(label: u8) -> Vec<u8> {
    let plane = |colour: usize| (0..1024).map(move |i| (i + colour) as u8);
    std::iter::once(label).chain((0..3).flat_map(plane)).collect()
}

/// Two records for each file of the training half, one for the test half.
fn folder() -> TempDir {
    let dir = TempDir::new().unwrap();
    for batch in 1..=5 {
        let name = format!("data_batch_{batch}.bin");
        fs::write(dir.path().join(name), [record(batch), record(batch + 4)].concat()).unwrap();
    }
    fs::write(dir.path().join("test_batch.bin"), record(0)).unwrap();
    dir
}

fn load(dir: &TempDir, half: Split) -> Result<Dataset, DataError> {
    DataSource::Dir(dir.path().to_owned()).load(half, 0)
}

/// With `bytes` as its second batch a folder fails with `fault` at `offset` of it, and says so.
#[track_caller]
fn check(bytes: &[u8], offset: u64, fault: &CifarFault, message: &str) {
    let dir = folder();
    let name = dir.path().join("data_batch_2.bin");
    fs::write(&name, bytes).unwrap();
    let error = load(&dir, Split::Train).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: byte {offset}: {message}", name.display()));
    match error {
        DataError::Cifar { path, offset: found, fault: found_fault } => {
            assert_eq!((path, found, &found_fault), (name, offset, fault));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn batches_follow_each_other_and_the_colours_of_a_pixel_lie_side_by_side() {
    let dir = folder();
    let data = Data::load(&DataSource::Dir(dir.path().to_owned()), 0).unwrap();
    assert_eq!(data.train.shape(), DataShape::CIFAR);
    assert_eq!(data.train.labels(), [1, 5, 2, 6, 3, 7, 4, 8, 5, 9]);
    assert_eq!(data.test.labels(), [0]);
    for sample in 0..10 {
        let image = data.train.image(sample);
        assert_eq!(image[..6], [0, 1, 2, 1, 2, 3]);
        assert_eq!(image[3 * 255..][..6], [255, 0, 1, 0, 1, 2]);
    }
}

#[test]
fn zipped_files_give_the_same_set() {
    let dir = folder();
    let plain = load(&dir, Split::Train).unwrap();
    for batch in [1, 4] {
        let name = dir.path().join(format!("data_batch_{batch}.bin"));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&fs::read(&name).unwrap()).unwrap();
        fs::write(name.with_extension("bin.gz"), encoder.finish().unwrap()).unwrap();
        fs::remove_file(name).unwrap();
    }
    assert_eq!(load(&dir, Split::Train).unwrap(), plain);
}

#[test]
fn faults_name_the_file_the_byte_and_what_was_expected() {
    use CifarFault::*;
    check(
        &[],
        0,
        &Record { expected: RECORD, found: 0 },
        "expected a record of 3073 bytes, found 0 bytes to the end",
    );
    check(
        &record(1)[..RECORD - 1],
        0,
        &Record { expected: RECORD, found: 3072 },
        "expected a record of 3073 bytes, found 3072 bytes to the end",
    );
    check(
        &[record(1), vec![1]].concat(),
        3073,
        &Record { expected: RECORD, found: 1 },
        "expected a record of 3073 bytes, found 1 bytes to the end",
    );
    check(
        &[record(9), record(10)].concat(),
        3073,
        &Label { found: 10, classes: 10 },
        "expected a label below 10, found 10",
    );
}

#[test]
fn a_missing_batch_is_named() {
    let dir = folder();
    fs::remove_file(dir.path().join("data_batch_3.bin")).unwrap();
    let error = load(&dir, Split::Train).unwrap_err().to_string();
    let place = dir.path().display();
    assert_eq!(
        error,
        format!("no data_batch_3.bin in {place} (also looked for data_batch_3.bin.gz)")
    );
    assert!(load(&dir, Split::Test).is_ok(), "the test half is there");
}

#[test]
fn a_folder_with_idx_files_stays_mnist() {
    let dir = folder();
    fs::write(dir.path().join("t10k-labels-idx1-ubyte"), []).unwrap();
    let error = load(&dir, Split::Train).unwrap_err().to_string();
    assert!(error.starts_with("no train-images-idx3-ubyte"), "{error}");
}

#[test]
fn a_folder_with_neither_is_told_what_was_looked_for() {
    let dir = TempDir::new().unwrap();
    let error = load(&dir, Split::Test).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "no data in {}: looked for MNIST's (train-images-idx3-ubyte, train-labels-idx1-ubyte, \
             t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte) and for CIFAR-10's (data_batch_1.bin \
             to data_batch_5.bin, test_batch.bin), plain or .gz",
            dir.path().display()
        )
    );
}
