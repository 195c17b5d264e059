//! Measures the kernels against a plain addition of two vectors, on 25 million parameters in
//! blocks of 1 MiB. `cargo run --release -p paceline-params --example bandwidth`

use std::hint::black_box;
use std::time::Instant;

use paceline_params::{
    Block, DEFAULT_BLOCK_ELEMS, Half, OptimizerSpec, ParamHash, Spares, Update, all_finite, fold,
    narrow, norm_squared, widen,
};

const ELEMS: usize = 25_000_000;
const REPEATS: usize = 9;

/// Prints the median of the bandwidth, counting `streams` vectors read or written.
fn measure(what: &str, streams: usize, mut pass: impl FnMut()) {
    pass();
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            pass();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let gigabytes = (streams * ELEMS * size_of::<f32>()) as f64 / 1e9;
    let (best, median) = (seconds[0], seconds[REPEATS / 2]);
    println!(
        "{what:<28} {:>6.1} ms {:>6.1} GB/s (best {:>5.1})",
        median * 1e3,
        gigabytes / median,
        gigabytes / best
    );
}

fn fold_blocks(acc: &mut [f32], first: bool, sources: &[Vec<f32>]) {
    for (i, acc) in acc.chunks_mut(DEFAULT_BLOCK_ELEMS).enumerate() {
        let start = i * DEFAULT_BLOCK_ELEMS;
        let sources: Vec<_> =
            sources.iter().map(|source| &source[start..start + acc.len()]).collect();
        fold(acc, first, &sources);
    }
}

/// Conversions of a block that is in the cache, as it is when it is sent or has just come; per
/// repeat as many blocks as make up all elements. Bandwidth counts the `f32` side.
fn measure_halves() {
    let mut values = vec![0.5f32; DEFAULT_BLOCK_ELEMS / 4];
    let mut bits = vec![0u16; values.len()];
    let blocks = ELEMS / values.len();
    for (name, half) in [("bf16", Half::Bf16), ("f16", Half::F16)] {
        measure(&format!("narrow to {name}"), 1, || {
            (0..blocks).for_each(|_| narrow(half, black_box(&values), black_box(&mut bits)));
        });
        measure(&format!("widen from {name}"), 1, || {
            (0..blocks).for_each(|_| widen(half, black_box(&bits), black_box(&mut values)));
        });
    }
}

fn main() {
    measure_halves();
    let sources: Vec<Vec<f32>> = (0..8).map(|k| vec![k as f32 + 0.5; ELEMS]).collect();
    let mut acc = vec![0.0f32; ELEMS];

    measure("copy (a = b)", 2, || black_box(&mut acc).copy_from_slice(black_box(&sources[0])));
    measure("STREAM add (a = b + c)", 3, || {
        let (b, c) = (black_box(&sources[0]), black_box(&sources[1]));
        for ((a, b), c) in black_box(&mut acc).iter_mut().zip(b).zip(c) {
            *a = b + c;
        }
    });
    for count in [1, 2, 4, 8] {
        let sources = &sources[..count];
        measure(&format!("fold {count} into a sum"), count + 2, || {
            fold_blocks(black_box(&mut acc), false, black_box(sources));
        });
        measure(&format!("fold {count}, the first"), count + 1, || {
            fold_blocks(black_box(&mut acc), true, black_box(sources));
        });
    }
    measure("all_finite", 1, || assert!(black_box(all_finite(&sources[0])).is_ok()));
    measure("norm_squared", 1, || assert!(black_box(norm_squared(&sources[0])) > 0.0));
    measure("hash", 1, || {
        black_box(ParamHash::from_values(0, black_box(&sources[0])));
    });

    let update = Update { step: 1, lr: 1e-3, scale: 0.1 };
    for (text, streams) in [("mean", 3), ("sgd", 3), ("momentum", 5), ("adam", 7), ("adamw", 7)] {
        let optimizer: OptimizerSpec = text.parse().expect("a known optimizer");
        let blocks = sources[0].chunks(DEFAULT_BLOCK_ELEMS);
        let mut blocks: Vec<_> =
            blocks.map(|values| Block::new(values.to_vec(), &optimizer)).collect();
        let spares = Spares::new(blocks.len());
        let mut apply = |read: bool| {
            let readers: Vec<_> = blocks.iter().filter(|_| read).map(Block::snapshot).collect();
            let grads = sources[1].chunks(DEFAULT_BLOCK_ELEMS);
            for (block, grads) in blocks.iter_mut().zip(grads) {
                block.apply(&optimizer, update, grads, &spares);
            }
            drop(readers);
        };
        measure(&format!("{text} in place"), streams, || apply(false));
        // The old version is read and a new one written beside it.
        measure(&format!("{text} while read"), streams, || apply(true));
    }
}
