//! Folding contributions against STREAM-add, in the same bytes.

use std::{hint::black_box, thread};

use anyhow::Result;
use paceline_params::fold;

use crate::{
    exchange::PARAMS,
    limits::{best_of_three, stream_add},
    paceline::Paceline,
    report::Report,
    stats::{abba_ratio, median},
};

/// Elements per block of the default size, which a shard folds at a time.
const BLOCK: usize = (1 << 20) / size_of::<f32>();

pub(super) fn run(_: &Paceline, report: &mut Report) -> Result<()> {
    let pairs = if report.quick() { 2 } else { 8 };
    let cores = thread::available_parallelism()?.get();
    for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        for &count in if report.quick() { &[2, 8][..] } else { &[1, 2, 4, 8] } {
            let (mut stream, mut folded) = (Vec::new(), Vec::new());
            let ratio = abba_ratio(
                pairs,
                || {
                    stream.push(stream_add(PARAMS, threads));
                    Ok(stream[stream.len() - 1])
                },
                || {
                    folded.push(fold_rate(count, threads));
                    Ok(folded[folded.len() - 1])
                },
            )?;
            let note = format!(
                "{count} contributions of 100 MB, in blocks of 1 MiB, by {threads} threads: {:.1} \
                 GB/s against STREAM-add's {:.1}; {ratio}",
                median(&folded) / 1e9,
                median(&stream) / 1e9
            );
            let name = format!("fold_of_stream_add_{count}_by_{threads}");
            report.at_least(&name, ratio.mean, 0.8, note);
        }
    }
    Ok(())
}

/// Bytes per second of summing `count` contributions, each thread its own part of the parameters, as
/// shards do; counted as in STREAM: bytes read, plus bytes written once.
fn fold_rate(count: usize, threads: usize) -> f64 {
    let contributions = vec![vec![1e-3f32; PARAMS]; count];
    let mut sum = vec![0.0f32; PARAMS];
    let part = PARAMS.div_ceil(threads);
    let contributions = &contributions;
    let fold_part = |start: usize, sum: &mut [f32]| {
        for (i, block) in sum.chunks_mut(BLOCK).enumerate() {
            let from = start + i * BLOCK;
            let sources: Vec<&[f32]> =
                contributions.iter().map(|c| &c[from..from + block.len()]).collect();
            fold(block, true, &sources);
        }
    };
    let seconds = best_of_three(|| {
        thread::scope(|scope| {
            for (i, sum) in sum.chunks_mut(part).enumerate() {
                scope.spawn(move || fold_part(i * part, sum));
            }
        });
        black_box(&sum);
    });
    ((count + 1) * PARAMS * size_of::<f32>()) as f64 / seconds
}
