//! Checkpoints survive what disks and crashes do to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_params::checkpoint::{latest, list, prune, read, verify, write};
use paceline_params::{
    Block, Checkpoint, CheckpointError, FlatVec, Layout, OptimizerGroups, OptimizerSpec, Spares,
    TensorSpec, Update,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use tempfile::TempDir;

const FILES: [&str; 3] = ["params.safetensors", "optimizer.safetensors", "manifest.json"];

fn tensors() -> Vec<TensorSpec> {
    vec![
        TensorSpec::new("fc.weight", [4, 5]),
        TensorSpec::new("fc.bias", [4]),
        TensorSpec::new("scale", []),
    ]
}

fn ramp(len: usize, start: f32) -> Vec<f32> {
    (0..len).map(|i| start + i as f32 / 8.0).collect()
}

fn checkpoint(round: u64) -> Checkpoint {
    Checkpoint {
        round,
        version: round,
        step: round,
        model: "mlp".to_owned(),
        optimizer: OptimizerSpec::ADAMW.into(),
        tensors: tensors(),
        params: ramp(25, round as f32).into(),
        slots: vec![ramp(25, 1.0).into(), ramp(25, 2.0).into()],
        worker_state: None,
        state: json!({ "epoch": 3, "loss": 0.1 + 0.2, "ledger": [[0, 512], [768, 1024]] }),
    }
}

/// A directory with checkpoints of these rounds.
fn run(rounds: &[u64]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for &round in rounds {
        write(dir.path(), &checkpoint(round)).unwrap();
    }
    dir
}

/// The newest whole checkpoint, where no newer one is damaged.
fn newest(dir: &TempDir) -> Option<PathBuf> {
    let latest = latest(dir.path()).unwrap()?;
    assert!(latest.damaged.is_empty(), "{:?}", latest.damaged);
    Some(latest.path)
}

fn at(parent: &TempDir, round: u64) -> PathBuf {
    parent.path().join(format!("round-{round:08}"))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_checkpoint_reads_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let parent = dir.path().join("runs/first/checkpoints");
    for optimizer in ["sgd", "momentum:0.95,nesterov", "adamw", "mean", "adam;adam:beta1=0.5"] {
        let optimizer: OptimizerGroups = optimizer.parse().unwrap();
        let slots = optimizer.slot_names().len();
        let mut written = Checkpoint { optimizer, ..checkpoint(123) };
        written.slots.truncate(slots);
        let path = write(&parent, &written).unwrap();
        assert_eq!(path, parent.join("round-00000123"));
        assert_eq!(read(&path).unwrap(), written);
        assert_eq!(verify(&path).unwrap().round, 123);
        assert_eq!(path.join("optimizer.safetensors").exists(), !written.slots.is_empty());
        assert_eq!(names(&parent), ["round-00000123"], "nothing is left beside it");
    }
}

/// A checkpoint of a run whose workers keep the parameters.
fn of_worker(round: u64) -> Checkpoint {
    Checkpoint {
        optimizer: OptimizerSpec::Mean.into(),
        params: Vec::new().into(),
        slots: Vec::new(),
        worker_state: Some(Arc::new(vec![7; 1000])),
        ..checkpoint(round)
    }
}

#[test]
fn a_workers_state_takes_the_place_of_parameters() {
    let dir = run(&[1]);
    let path = write(dir.path(), &of_worker(2)).unwrap();
    assert_eq!(names(&path), ["manifest.json", "state.safetensors"]);
    assert_eq!(read(&path).unwrap(), of_worker(2));
    fs::write(path.join("state.safetensors"), [7; 999]).unwrap();
    check_damage(&dir, "state.safetensors", "999 bytes, where the manifest says 1000");
    let both = Checkpoint { params: ramp(25, 1.0).into(), ..of_worker(3) };
    let error = write(dir.path(), &both).unwrap_err().to_string();
    assert_eq!(error, "write parameters: 25 elements, where the tensors have 0");
}

#[test]
fn any_safetensors_reader_finds_the_tensors_by_name_and_shape() {
    let dir = run(&[7]);
    let bytes = fs::read(at(&dir, 7).join("params.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let bias = file.tensor("fc.bias").unwrap();
    assert_eq!(bias.shape(), [4]);
    let values: Vec<_> =
        bias.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(values, ramp(25, 7.0)[20..24]);
    assert_eq!(file.tensor("scale").unwrap().shape(), [0; 0]);
    let bytes = fs::read(at(&dir, 7).join("optimizer.safetensors")).unwrap();
    let mut slots = SafeTensors::deserialize(&bytes)
        .unwrap()
        .names()
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    slots.sort();
    let expected = [
        "adam_m/fc.bias",
        "adam_m/fc.weight",
        "adam_m/scale",
        "adam_v/fc.bias",
        "adam_v/fc.weight",
        "adam_v/scale",
    ];
    assert_eq!(slots, expected);
}

/// Checks the error that damage to a file of a checkpoint is reported as.
#[track_caller]
fn check_damage(dir: &TempDir, file: &str, message: &str) {
    let path = at(dir, 2);
    let error = read(&path).unwrap_err();
    let expected = format!("read {}: {message}", path.join(file).display());
    assert!(error.to_string().starts_with(&expected), "{error}\nis not\n{expected}");
    assert_eq!(verify(&path).unwrap_err().to_string(), error.to_string());
    let found = latest(dir.path()).unwrap().unwrap();
    assert_eq!(found.path, at(dir, 1), "{file} {message}");
    let told: Vec<_> =
        found.damaged.iter().map(|d| (d.path.clone(), d.error.to_string())).collect();
    assert_eq!(told, [(path, error.to_string())]);
}

#[test]
fn a_missing_file_is_refused_and_skipped() {
    for file in FILES {
        let dir = run(&[1, 2]);
        fs::remove_file(at(&dir, 2).join(file)).unwrap();
        check_damage(&dir, file, "No such file");
    }
}

#[test]
fn a_file_truncated_anywhere_is_refused_and_skipped() {
    let dir = run(&[1, 2]);
    for file in FILES {
        let path = at(&dir, 2).join(file);
        let whole = fs::read(&path).unwrap();
        for len in (0..whole.len()).step_by(23).chain([whole.len() - 1]) {
            fs::write(&path, &whole[..len]).unwrap();
            let expected = match file {
                "manifest.json" => String::new(),
                _ => format!("{len} bytes, where the manifest says {}", whole.len()),
            };
            check_damage(&dir, file, &expected);
        }
        fs::write(&path, [&whole[..], b" "].concat()).unwrap();
        check_damage(&dir, file, "");
        fs::write(&path, &whole).unwrap();
    }
    assert_eq!(newest(&dir), Some(at(&dir, 2)));
}

#[test]
fn a_flipped_bit_anywhere_is_refused_and_skipped() {
    let dir = run(&[1, 2]);
    for file in FILES {
        let path = at(&dir, 2).join(file);
        let whole = fs::read(&path).unwrap();
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1 << (byte % 8);
            fs::write(&path, &damaged).unwrap();
            let expected = if file == "manifest.json" { "" } else { "checksum " };
            check_damage(&dir, file, expected);
        }
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_checksum_error_gives_both_values() {
    let dir = run(&[1]);
    let path = at(&dir, 1).join("params.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let whole = crc32fast::hash(&bytes);
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let damaged = crc32fast::hash(&bytes);
    assert_eq!(
        read(&at(&dir, 1)).unwrap_err().to_string(),
        format!(
            "read {}: checksum {damaged:08x}, where the manifest says {whole:08x}",
            path.display()
        )
    );
}

#[test]
fn unfinished_and_foreign_entries_are_passed_over() {
    let dir = run(&[5, 40]);
    for name in [".tmp-round-00000099", "round-99", "round-00000099x", "other"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["notes.txt", "round-00000098"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    assert_eq!(list(dir.path()).unwrap(), [at(&dir, 40), at(&dir, 5)]);
    assert_eq!(newest(&dir), Some(at(&dir, 40)));
}

#[test]
fn no_checkpoint_is_not_taken_for_a_damaged_one() {
    let dir = run(&[]);
    assert!(latest(&dir.path().join("nowhere")).unwrap().is_none());
    assert_eq!(newest(&dir), None);
    fs::create_dir(at(&dir, 3)).unwrap();
    let error = latest(dir.path()).unwrap_err();
    assert!(error.to_string().contains("round-00000003/manifest.json"), "{error}");
}

#[test]
fn a_crash_between_the_steps_of_a_replacement_loses_nothing() {
    let dir = run(&[1, 2]);
    let replaced = dir.path().join("round-00000002.replaced");
    fs::rename(at(&dir, 2), &replaced).unwrap();
    assert_eq!(newest(&dir), Some(replaced.clone()));

    let newer = Checkpoint { model: "other".to_owned(), ..checkpoint(2) };
    write(dir.path(), &newer).unwrap();
    assert_eq!(names(dir.path()), ["round-00000001", "round-00000002"]);
    assert_eq!(read(&newest(&dir).unwrap()).unwrap(), newer);
}

#[test]
fn a_damaged_checkpoint_of_the_same_round_is_replaced() {
    let dir = run(&[1, 2]);
    fs::remove_file(at(&dir, 2).join("manifest.json")).unwrap();
    fs::create_dir(dir.path().join(".tmp-round-00000002")).unwrap();
    write(dir.path(), &checkpoint(2)).unwrap();
    assert_eq!(read(&at(&dir, 2)).unwrap(), checkpoint(2));
    let kept = ["round-00000001", "round-00000002", "round-00000002.damaged"];
    assert_eq!(names(dir.path()), kept, "what is left of the damaged one is the user's");
    assert!(names(&dir.path().join(kept[2])).contains(&"params.safetensors".to_owned()));
}

#[test]
fn pruning_keeps_the_newest_whole_ones() {
    let dir = run(&[1, 2, 3, 4, 5]);
    fs::write(at(&dir, 4).join("params.safetensors"), "torn").unwrap();
    fs::create_dir(dir.path().join(".tmp-round-00000006")).unwrap();
    let pruned = prune(dir.path(), 2).unwrap();
    assert_eq!(pruned.removed, [at(&dir, 2), at(&dir, 1)]);
    let [aside] = &pruned.set_aside[..] else { panic!("{pruned:?}") };
    assert_eq!(aside.path, dir.path().join("round-00000004.damaged"));
    assert!(aside.error.to_string().contains("4 bytes, where the manifest says"), "{aside:?}");
    let left = ["round-00000003", "round-00000004.damaged", "round-00000005"];
    assert_eq!(names(dir.path()), left);
    prune(dir.path(), 0).unwrap();
    assert_eq!(names(dir.path()), left[1..], "one always stays, and so does damaged data");
}

/// Flips one bit of the parameters: sizes stay right, the checksum does not.
fn flip_a_bit(checkpoint: &Path) {
    let path = checkpoint.join("params.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
}

#[test]
fn pruning_never_gives_up_a_whole_checkpoint_for_a_damaged_one() {
    let dir = run(&[1, 2, 3]);
    flip_a_bit(&at(&dir, 3));
    prune(dir.path(), 1).unwrap();
    assert_eq!(read(&at(&dir, 2)).unwrap(), checkpoint(2));
    assert_eq!(names(dir.path()), ["round-00000002", "round-00000003.damaged"]);
    assert_eq!(newest(&dir), Some(at(&dir, 2)), "what is set aside is no checkpoint any more");

    write(dir.path(), &checkpoint(3)).unwrap();
    flip_a_bit(&at(&dir, 3));
    prune(dir.path(), 1).unwrap();
    let left = ["round-00000002", "round-00000003.damaged", "round-00000003.damaged-2"];
    assert_eq!(names(dir.path()), left);
}

#[test]
fn pruning_changes_nothing_where_every_checkpoint_is_damaged() {
    let dir = run(&[1, 2, 3]);
    (1..=3).for_each(|round| flip_a_bit(&at(&dir, round)));
    let pruned = prune(dir.path(), 1).unwrap();
    assert!(pruned.removed.is_empty() && pruned.set_aside.is_empty(), "{pruned:?}");
    let error = latest(dir.path()).unwrap_err().to_string();
    assert!(error.contains("round-00000003"), "{error}");
}

#[test]
fn an_inconsistent_checkpoint_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let check = |checkpoint: Checkpoint, message: &str| {
        assert_eq!(write(dir.path(), &checkpoint).unwrap_err().to_string(), message);
        assert_eq!(names(dir.path()), [""; 0]);
    };
    let params = FlatVec::from(vec![0.0; 24]);
    check(
        Checkpoint { params, ..checkpoint(1) },
        "write parameters: 24 elements, where the tensors have 25",
    );
    check(
        Checkpoint { optimizer: OptimizerSpec::MOMENTUM.into(), ..checkpoint(1) },
        "write optimizer state: 2 vectors, where the optimizer keeps [\"momentum\"]",
    );
    check(
        Checkpoint { tensors: vec![], ..checkpoint(1) },
        "lay out the checkpoint's tensors: the model has no tensors",
    );
}

/// A checkpoint whose parameter file was made by another writer of the format.
fn foreign(dtype: Dtype, tensors: &[(&str, &[usize])]) -> Result<Checkpoint, CheckpointError> {
    let dir = tempfile::tempdir().unwrap();
    let sgd = Checkpoint { optimizer: OptimizerSpec::SGD.into(), slots: vec![], ..checkpoint(1) };
    let path = write(dir.path(), &sgd).unwrap();
    let values: Vec<u8> = ramp(26, 1.0).iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut start = 0;
    let mut views = BTreeMap::new();
    for (name, shape) in tensors {
        let end = start + 4 * shape.iter().product::<usize>();
        let view = safetensors::tensor::TensorView::new(dtype, shape.to_vec(), &values[start..end]);
        views.insert(*name, view.unwrap());
        start = end;
    }
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(path.join("params.safetensors"), &bytes).unwrap();
    reseal(&path.join("manifest.json"), &bytes);
    read(&path)
}

/// Makes a manifest agree with other contents of the parameter file.
fn reseal(path: &Path, params: &[u8]) {
    let text = fs::read_to_string(path).unwrap();
    let mut manifest: paceline_params::checkpoint::Manifest = serde_json::from_str(&text).unwrap();
    manifest.files[0].bytes = params.len() as u64;
    manifest.files[0].crc32.0 = crc32fast::hash(params);
    manifest.seal.0 = 0;
    let text = serde_json::to_string_pretty(&manifest).unwrap();
    let seal = format!("\"seal\": \"{:08x}\"", crc32fast::hash(text.as_bytes()));
    fs::write(path, text.replacen("\"seal\": \"00000000\"", &seal, 1)).unwrap();
}

#[test]
fn tensors_are_found_by_name_in_whatever_order_they_lie() {
    // Other writers sort by name, so the file is not in the order of the flat vector.
    let tensors: [(&str, &[usize]); 3] =
        [("fc.weight", &[4, 5]), ("fc.bias", &[4]), ("scale", &[])];
    assert_eq!(foreign(Dtype::F32, &tensors).unwrap().params, ramp(25, 1.0).into());
}

#[test]
fn a_file_that_does_not_match_the_manifest_is_refused_by_tensor() {
    let check = |dtype, tensors: &[(&str, &[usize])], message: &str| {
        let error = foreign(dtype, tensors).unwrap_err().to_string();
        assert!(error.ends_with(message), "{error}");
    };
    let weight: (&str, &[usize]) = ("fc.weight", &[4, 5]);
    let bias: (&str, &[usize]) = ("fc.bias", &[4]);
    let scale: (&str, &[usize]) = ("scale", &[]);
    check(Dtype::F32, &[weight, scale], "tensor `fc.bias` is missing");
    check(
        Dtype::F32,
        &[("fc.weight", &[5, 4]), bias, scale],
        "tensor `fc.weight` has shape [5, 4], where the manifest says [4, 5]",
    );
    check(
        Dtype::F32,
        &[weight, bias, scale, ("extra", &[1])],
        "tensor `extra` is not in the manifest",
    );
    check(Dtype::I32, &[weight, bias, scale], "tensor `fc.weight` is I32, not F32");
}

/// Trains for `steps` on `shards` shards from a checkpoint, and returns the next checkpoint.
fn train(from: &Checkpoint, block_elems: usize, shards: u32, steps: u64) -> Checkpoint {
    let layout: Layout = from.layout(block_elems, shards).unwrap();
    let spares = Spares::new(8);
    let mut blocks: Vec<Block> = (0..layout.blocks())
        .map(|block| {
            let range = layout.block_range(block);
            let slots = from.slots.iter().map(|slot| slot.copy(range.clone())).collect();
            Block::restore(from.params.copy(range.clone()), slots)
        })
        .collect();
    for step in from.step + 1..=from.step + steps {
        for (index, block) in (0..).zip(&mut blocks) {
            let sums: Vec<_> = layout.block_range(index).map(|i| (i as f32).sin()).collect();
            block.apply(from.optimizer.of(0), Update { step, lr: 0.1, scale: 0.5 }, &sums, &spares);
        }
    }
    let slot = |k: usize| blocks.iter().map(|block| Arc::clone(&block.slots()[k])).collect();
    Checkpoint {
        round: from.round + steps,
        version: from.version + steps,
        step: from.step + steps,
        params: blocks.iter().map(Block::snapshot).collect(),
        slots: (0..from.slots.len()).map(slot).collect(),
        ..from.clone()
    }
}

#[test]
fn a_run_resumes_on_another_number_of_shards_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let start = checkpoint(0);
    let straight = train(&start, 7, 1, 6);
    let half = train(&start, 4, 3, 3);
    let resumed = read(&write(dir.path(), &half).unwrap()).unwrap();
    assert_eq!(train(&resumed, 9, 2, 3), straight);
}
