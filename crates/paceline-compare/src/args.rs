//! The flags of `paceline compare`.

use std::path::PathBuf;

use clap::Args;
use paceline_core::{Span, Straggler};
use paceline_nn::{CostSpec, DataSource, ModelSpec};

use crate::{contender::Contender, scenario::ScenarioSpec, target::Target};

/// The flags of `paceline compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Policies, separated by commas; options follow slashes (auto/samples, static:0.9/abort,
    /// filter/fold); best-static finds its share by a sweep
    #[arg(
        long,
        value_name = "POLICY",
        value_delimiter = ',',
        default_value = "full,static:0.9,auto"
    )]
    pub(crate) policies: Vec<Contender>,
    /// Scenario; repeat the flag for several: none, slowness as for `train --stragglers`
    /// (slow:0:3, stalls:3, node:0-3:2), trace:FILE or synthetic:SPEC [default: none and stalls:3]
    #[arg(long, value_name = "SCENARIO")]
    pub(crate) scenario: Vec<ScenarioSpec>,
    /// Number of seeds; a seed determines initial parameters, sample order and run-times
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) workers: u32,
    /// Samples per worker and round
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Micro-batches per worker and round
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) micro_batches: u32,
    /// Model: softmax, mlp, cnn, …
    #[arg(long, default_value = "cnn")]
    pub(crate) model: ModelSpec,
    /// Data set: `embedded`, or a folder with its files
    #[arg(long, value_name = "DIR", default_value = "embedded")]
    pub(crate) data: DataSource,
    /// Relative costs of the training samples: a file with one number per line, or
    /// lognormal:SIGMA; balances batches by cost, except for policies with /unbalanced
    #[arg(long, value_name = "FILE")]
    pub(crate) costs: Option<CostSpec>,
    /// Give every worker its own part of the data, ordered by class, so that few workers share
    /// classes; virtual clock only
    #[arg(long)]
    pub(crate) homes: bool,
    /// Test accuracy to reach, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub(crate) target_accuracy: f64,
    /// Test loss to reach, instead of an accuracy
    #[arg(long, value_name = "LOSS", conflicts_with = "target_accuracy")]
    pub(crate) target_loss: Option<f64>,
    /// Epochs after which a run ends without the target
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: u32,
    /// Train for all epochs, to compare final accuracies, instead of ending at the target
    #[arg(long)]
    pub(crate) to_the_end: bool,
    /// Learning rate of a round with all contributions; or several, separated by commas, to try
    /// for every policy and scenario (a sweep uses the first)
    #[arg(long, value_name = "LR", value_delimiter = ',', default_value = "0.02")]
    pub(crate) lr: Vec<f32>,
    /// Number of learning rates to try, on separate seeds, if --lr gives one: lr times 1, 2, ½, ¼, …
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=7))]
    pub(crate) tune: u32,
    /// Seeds per learning rate tried; with one seed, the choice may be down to luck
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) tune_seeds: u32,
    /// Evaluations on the test set per epoch
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) evaluations: u32,
    /// Seconds between a round's close and the next round; an undisturbed worker takes one second
    #[arg(long, value_name = "SECONDS", default_value_t = 0.01)]
    pub(crate) overhead: f64,
    /// Study backup workers: wait for the first N, N + 1, … or all of N + b machines; recommends
    /// N and b, with the reason
    #[arg(long, value_name = "N,b", value_parser = sweep, conflicts_with_all = ["policies", "workers"])]
    pub(crate) sweep: Option<(u32, u32)>,
    /// Run real processes on this machine, workers padded to this time per round
    #[arg(long, value_name = "TIME")]
    pub(crate) live: Option<Span>,
    /// Folder for results; runs whose results are in it are not repeated
    #[arg(long, value_name = "DIR", default_value = "compare")]
    pub out: PathBuf,
    /// Print one JSON object per policy and scenario, and one per recommendation of a sweep
    #[arg(long)]
    pub json: bool,
}

impl CompareArgs {
    pub(crate) fn target(&self) -> Target {
        self.target_loss.map_or(Target::Accuracy(self.target_accuracy), Target::Loss)
    }

    /// Learning rates to try. A single `--lr` is doubled only once: higher rates diverge early, and
    /// may do so with some seeds only.
    pub(crate) fn rates(&self) -> Vec<f32> {
        match self.lr[..] {
            [one] => (0..self.tune as i32)
                .map(|i| one * 2f32.powi(if i == 1 { 1 } else { (1 - i).min(0) }))
                .collect(),
            _ => self.lr.clone(),
        }
    }

    /// Refuses flags that do not go together.
    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let rules = [
            ((0.0..=1.0).contains(&self.target_accuracy), "--target-accuracy must be from 0 to 1"),
            (self.target_loss.is_none_or(positive), "--target-loss must be a positive number"),
            (self.lr.iter().all(|lr| positive((*lr).into())), "--lr must be a positive number"),
            (self.overhead == 0.0 || positive(self.overhead), "--overhead must not be negative"),
            (self.micro_batches <= self.batch, "--micro-batches are at most --batch"),
            (
                self.micro_batches > 1
                    || self.policies.iter().all(|it| it.straggler != Some(Straggler::Salvage)),
                "salvage needs at least two --micro-batches",
            ),
            (
                !(self.homes && self.live.is_some()),
                "--homes is for the virtual clock, not for --live",
            ),
        ];
        if let Some((_, wrong)) = rules.iter().find(|(holds, _)| !holds) {
            return Err((*wrong).to_owned());
        }
        self.policies.iter().enumerate().try_for_each(|(i, contender)| {
            let why = match () {
                () if self.policies[..i].contains(contender) => "given twice",
                () if (contender.reweigh || contender.impatient) && !self.homes => {
                    "reweigh and impatient need data that lives on workers (--homes)"
                }
                () if contender.unbalanced && self.costs.is_none() => "unbalanced needs --costs",
                () => return Ok(()),
            };
            Err(format!("`{contender}`: {why}"))
        })
    }
}

fn sweep(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "expected N,b: workers to wait for and most backups (8,4)".to_owned();
    let (workers, backups) = text.split_once(',').ok_or_else(wrong)?;
    match (workers.trim().parse(), backups.trim().parse()) {
        (Ok(workers), Ok(backups))
            if (1..=4096).contains(&workers) && backups <= 4096 - workers =>
        {
            Ok((workers, backups))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: CompareArgs,
    }

    #[test]
    fn learning_rates_are_tried_on_both_sides_or_as_given() {
        let rates = |flags: &str| {
            let flags = std::iter::once("compare").chain(flags.split_whitespace());
            Cli::parse_from(flags).args.rates()
        };
        assert_eq!(rates("--lr 8 --tune 1"), [8.0]);
        assert_eq!(rates("--lr 8 --tune 5"), [8.0, 16.0, 4.0, 2.0, 1.0]);
        assert_eq!(rates("--lr 3,5,1"), [3.0, 5.0, 1.0]);
    }
}
