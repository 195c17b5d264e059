//! The first command of the README, and MNIST.

use std::time::Instant;

use anyhow::Result;

use crate::{
    paceline::{Paceline, workspace},
    report::Report,
};

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let began = Instant::now();
    let run = paceline.train("first", "")?;
    let seconds = began.elapsed().as_secs_f64();
    let note = "the README's first command: CNN, embedded set, 4 workers, 2 shards";
    report.at_least("first_command_accuracy", run.number("/test_accuracy"), 0.9, note);
    report.at_most("first_command_seconds", seconds, 180.0, "the whole command, after the build");
    report.must("first_command_ledger", run.is("/ledger/balanced"), "every sample used once");

    let softmax = paceline.train("softmax", "--model softmax --epochs 5")?;
    let note = "softmax regression on the embedded set: it needs more than a linear model";
    report.at_most("embedded_softmax_accuracy", softmax.number("/test_accuracy"), 0.6, note);
    mnist(paceline, report)
}

fn mnist(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let data = workspace().join("../shared/datasets/mnist");
    if !data.is_dir() {
        report.skip("mnist_cnn_accuracy", ">= 0.985", "MNIST is not in ../shared/datasets/mnist");
        return Ok(());
    }
    if report.quick() {
        report.skip("mnist_cnn_accuracy", ">= 0.985", "takes longer than a quick run");
        return Ok(());
    }
    let run = paceline.train("mnist", &format!("--data {} --epochs 5", data.display()))?;
    let note = format!("CNN, 5 epochs of MNIST, default settings, {:.0} s", run.number("/seconds"));
    report.at_least("mnist_cnn_accuracy", run.number("/test_accuracy"), 0.985, note);
    Ok(())
}
