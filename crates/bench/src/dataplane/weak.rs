//! One of four shards slowed five times: rounds that wait for it against rounds that do not, what
//! that costs in accuracy, and slow workers beside it.

use std::fmt::Write as _;

use anyhow::Result;
use paceline_core::EventKind;

use crate::{
    paceline::{FinishedRun, Paceline, workspace},
    report::Report,
    stats::{interleaved, paired_difference, ratio},
};

const SHARDS: &str = "--shards 4 --max-stale 8 --transport tcp --checkpoint-every 1000000";

/// Workers and shards padded so that shards take 30 % of an undisturbed round.
const PACED: &str = "--model mlp --batch 16 --nominal 56ms --shard-nominal 24ms \
                     --eval-every 1000000";

/// The same share, as fast as two cores compute the CNN on 128 images per round.
const PACED_CNN: &str = "--model cnn --batch 32 --nominal 14ms --shard-nominal 6ms --policy full \
                         --eval-every 1000000";

const SLOW_SHARD: &str = "--stragglers shard:1:5";
/// One shard's link: a round's transfers take three times as long as the round itself.
const SLOW_LINK: &str = "--stragglers shard-link:1:50mbit";
const SLOW_BOTH: &str = "--stragglers shard:1:5,slow:3:5";

/// How shards are waited for, from few of the blocks to all.
const CURVE: [&str; 5] = ["0.25", "0.5", "0.75", "all", "auto"];
const SEEDS: u64 = 5;
/// Epochs of the curve and of the comparison; old values cost the most in the first epochs.
const EPOCHS: [u32; 2] = [1, 2];

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let learned = learned(paceline)?;
    slow_shard(paceline, report, &learned)?;
    slow_link(paceline, report, &learned)?;
    slow_worker_too(paceline, report, &learned)
}

/// The flags with which a run learns which shards to wait for.
fn learned(paceline: &Paceline) -> Result<String> {
    let push = if paceline.knows("--push")? { " --push auto" } else { "" };
    Ok(format!("--pull auto{push}"))
}

fn train(paceline: &Paceline, flags: &str) -> Result<FinishedRun> {
    let run = paceline.train("weak", &format!("{SHARDS} {flags}"))?;
    paceline.discard("weak")?;
    Ok(run)
}

/// Rounds per second without a slow shard, with one that is waited for, and with learned waiting.
fn rates(
    paceline: &Paceline,
    (pairs, rounds): (usize, u32),
    slow: &str,
    learned: &str,
) -> Result<Vec<Vec<f64>>> {
    let ways = ["--pull all".to_owned(), format!("--pull all {slow}"), format!("{learned} {slow}")];
    interleaved(pairs, ways.len(), |who| {
        let flags = format!("{PACED} --policy full --rounds {rounds} {}", ways[who]);
        let rate = train(paceline, &flags)?.number("/rounds_per_s");
        eprintln!("   {}: {rate:.2} rounds/s", ways[who]);
        Ok(rate)
    })
}

/// Rounds per second with a slow link of one shard, as a share of those without.
fn slow_link(paceline: &Paceline, report: &mut Report, learned: &str) -> Result<()> {
    let size = if report.quick() { (1, 20) } else { (2, 120) };
    let turns = rates(paceline, size, SLOW_LINK, learned)?;
    for (name, way) in [("all", 1), ("auto", 2)] {
        let share = ratio(&turns[0], &turns[way]);
        let note =
            format!("rounds a second, a shard of 4 behind 50 Mbit/s, over nothing slow; {share}");
        report.tell(&format!("slow_link_rate_{name}"), share.mean, note);
    }
    let auto = ratio(&turns[1], &turns[2]);
    let note = format!("rounds a second of {learned} over --pull all, behind that link; {auto}");
    report.at_least("slow_link_auto_over_all", auto.low, 1.0, note);
    Ok(())
}

/// Rounds per second with the slow shard, as a share of those without.
fn slow_shard(paceline: &Paceline, report: &mut Report, learned: &str) -> Result<()> {
    let size = if report.quick() { (1, 15) } else { (3, 50) };
    let turns = rates(paceline, size, SLOW_SHARD, learned)?;
    let all = ratio(&turns[0], &turns[1]);
    let note = format!("--pull all, a shard of 4 slowed 5×, over nothing slow; {all}");
    report.tell("slow_shard_rate_all", all.mean, note);
    let auto = ratio(&turns[0], &turns[2]);
    let note = format!("{learned}, the same shard slow, over --pull all and nothing slow; {auto}");
    report.at_least("slow_shard_rate_auto", auto.low, 0.8, note);
    Ok(())
}

/// A worker and a shard slowed: rounds and samples per second with learned cuts and shards.
fn slow_worker_too(paceline: &Paceline, report: &mut Report, learned: &str) -> Result<()> {
    let (pairs, limit) = if report.quick() { (1, "2s") } else { (2, "8s") };
    let ways = [
        "--policy full --pull all".to_owned(),
        format!("--policy full --pull all {SLOW_BOTH}"),
        format!("--policy auto {learned} {SLOW_BOTH}"),
    ];
    let mut samples = vec![Vec::new(); ways.len()];
    let mut balanced = true;
    let rounds = interleaved(pairs, ways.len(), |who| {
        let run = train(paceline, &format!("{PACED} --time-limit {limit} {}", ways[who]))?;
        let [rounds, used] = ["/rounds_per_s", "/samples_per_s"].map(|path| run.number(path));
        eprintln!("   {}: {rounds:.2} rounds/s, {used:.0} samples/s", ways[who]);
        samples[who].push(used);
        balanced &= run.is("/ledger/balanced");
        Ok(rounds)
    })?;
    for (unit, turns) in [("rounds", &rounds), ("samples", &samples)] {
        let waiting = ratio(&turns[1], &turns[2]);
        let note = format!(
            "{unit} a second of --policy auto {learned} over full and all, a worker and a shard of \
             4 slowed 5×; {waiting}"
        );
        report.at_least(&format!("slow_both_{unit}_auto_over_full"), waiting.low, 1.0, note);
        for (name, way) in [("full", 1), ("auto", 2)] {
            let share = ratio(&turns[0], &turns[way]);
            let note = format!("{unit} a second, over nothing slow; {share}");
            report.tell(&format!("slow_both_{unit}_{name}"), share.mean, note);
        }
    }
    report.must("slow_both_balanced", balanced, "the ledger of every run");
    Ok(())
}

/// The outcome of a run on MNIST.
struct Trained {
    accuracy: f64,
    rate: f64,
    /// Of the blocks that rounds were computed from.
    stale: f64,
}

impl Trained {
    fn from_run(run: &FinishedRun) -> Trained {
        // Shards have about equally many blocks.
        let (mut stale, mut all) = (0, 0);
        for event in &run.events {
            if let EventKind::Updated { shards, .. } = &event.kind {
                all += shards.len();
                stale += shards.iter().filter(|shard| shard.counts.blocks_stale > 0).count();
            }
        }
        Trained {
            accuracy: 100.0 * run.number("/test_accuracy"),
            rate: run.number("/rounds_per_s"),
            stale: stale as f64 / all as f64,
        }
    }
}

/// Accuracy after the same samples: nothing slow against a slow shard that is not waited for, and
/// against how many blocks rounds wait for.
pub(super) fn accuracy(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let learned = &learned(paceline)?;
    const NAME: &str = "slow_shard_accuracy_points";
    const GOAL: f64 = -0.3;
    let data = workspace().join("../shared/datasets/mnist");
    let why = match () {
        () if !data.is_dir() => Some("MNIST is not in ../shared/datasets/mnist"),
        () if report.quick() => Some("takes longer than a quick run"),
        () => None,
    };
    if let Some(why) = why {
        report.skip(NAME, &format!(">= {GOAL}"), why);
        report.skip("accuracy_against_blocks", "stated", why);
        return Ok(());
    }
    let train = |epochs: u32, seed: u64, way: &str| -> Result<Trained> {
        let data = data.display();
        let flags = format!("{PACED_CNN} --epochs {epochs} --data {data} --seed {seed} {way}");
        let trained = Trained::from_run(&train(paceline, &flags)?);
        eprintln!("   {way}: {:.2} %, {:.1} rounds/s", trained.accuracy, trained.rate);
        Ok(trained)
    };
    let mut even: [Vec<Trained>; 2] = Default::default();
    let mut curve: [Vec<Trained>; CURVE.len()] = Default::default();
    let mut later = Vec::new();
    for seed in 1..=SEEDS {
        for (epochs, even) in EPOCHS.into_iter().zip(&mut even) {
            even.push(train(epochs, seed, "--pull all")?);
        }
        for (pull, runs) in CURVE.iter().zip(&mut curve) {
            let way = if *pull == "auto" { learned.to_owned() } else { format!("--pull {pull}") };
            runs.push(train(EPOCHS[0], seed, &format!("{way} {SLOW_SHARD}"))?);
        }
        later.push(train(EPOCHS[1], seed, &format!("{learned} {SLOW_SHARD}"))?);
    }
    let points = |runs: &[Trained]| runs.iter().map(|run| run.accuracy).collect::<Vec<f64>>();
    let note = |epochs: u32, mean: f64, low: f64| {
        format!(
            "points of test accuracy that {learned} with a slow shard is above --pull all with \
             nothing slow, CNN, epochs of MNIST: {epochs}, {SEEDS} seeds: mean {mean:.2}, 95 % from \
             {low:.2}"
        )
    };
    let (mean, low) = paired_difference(&points(&even[1]), &points(&later));
    report.at_least(NAME, low, GOAL, note(EPOCHS[1], mean, low));
    let [.., all, auto] = &curve;
    let (mean, low) = paired_difference(&points(&even[0]), &points(auto));
    report.tell(&format!("{NAME}_at_first"), low, note(EPOCHS[0], mean, low));
    report.section(table(&even[0], &curve) + &shown(&curve[0], all, auto));
    Ok(())
}

fn mean(runs: &[Trained], figure: impl Fn(&Trained) -> f64) -> f64 {
    runs.iter().map(figure).sum::<f64>() / runs.len() as f64
}

fn table(even: &[Trained], curve: &[Vec<Trained>]) -> String {
    let mut text = format!(
        "## Accuracy against blocks that are waited for\n\nCNN, epochs of MNIST: {}, 4 \
         workers, 4 shards of which one is slowed 5×, {SEEDS} seeds; the first row with nothing slow.\n\n\
         | --pull | test accuracy, % | least | most | rounds/s | blocks stale, % |\n\
         |---|---|---|---|---|---|\n",
        EPOCHS[0]
    );
    let rows = [("all, nothing slow", even)].into_iter();
    for (pull, runs) in rows.chain(CURVE.into_iter().zip(curve.iter().map(Vec::as_slice))) {
        let end = |pick: fn(f64, f64) -> f64| {
            runs.iter().map(|run| run.accuracy).reduce(pick).unwrap_or(f64::NAN)
        };
        let _ = writeln!(
            text,
            "| {pull} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} |",
            mean(runs, |run| run.accuracy),
            end(f64::min),
            end(f64::max),
            mean(runs, |run| run.rate),
            100.0 * mean(runs, |run| run.stale)
        );
    }
    text
}

/// The conclusion from the table.
fn shown(few: &[Trained], all: &[Trained], auto: &[Trained]) -> String {
    let points = |runs| mean(runs, |run| run.accuracy) - mean(all, |run| run.accuracy);
    let rate = |runs| mean(runs, |run| run.rate) / mean(all, |run| run.rate);
    format!(
        "\nAgainst waiting for all, workers that begin with the first shard's values give {:+.2} points at \
         {:.2} times the rounds a second; auto {:+.2} points at {:.2} times.\n",
        points(few),
        rate(few),
        points(auto),
        rate(auto)
    )
}
