//! Mode `mean` with policy `full` computes what DDP computes.

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use crate::report::Report;

use super::{python::Python, system::System};

/// How far the losses of two runs with Adam may be from each other, relative: a reordered sum moves them.
const LOSSES: f64 = 1e-3;

/// How far parameters after Adam may be from DDP's, over how far DDP's are from its own where ranks have each
/// other's batches, so that only the order of its sums differs.
const REORDERED: f64 = 2.0;

/// How one worker's parameters differ from DDP's.
#[derive(Debug, Deserialize)]
struct Difference {
    /// The worst of all elements, over its tolerance.
    worst: f64,
    tensor: String,
    /// The worst of all steps' losses, relative.
    loss_difference: f64,
}

/// A comparison after 100 steps.
struct Case {
    name: &'static str,
    args: &'static str,
    /// Whether parameters are equal within tolerances; else losses are compared.
    parameters: bool,
}

const CASES: [Case; 4] = [
    Case {
        name: "equal_recorded",
        args: "--workload cnn --optimizer momentum --gradients recorded",
        parameters: true,
    },
    Case {
        name: "equal_live_sgd",
        args: "--workload cnn --optimizer sgd --gradients live",
        parameters: true,
    },
    Case {
        name: "equal_live_momentum",
        args: "--workload cnn --optimizer momentum --gradients live",
        parameters: true,
    },
    Case {
        name: "equal_live_adam",
        args: "--workload gpt-0.8m --optimizer adam --gradients live",
        parameters: false,
    },
];

pub(super) fn run(python: &Python, report: &mut Report) -> Result<()> {
    let missing = python.has(&System::MEAN).err();
    for Case { name, args, parameters } in CASES {
        let goal = if parameters { 1.0 } else { LOSSES };
        let skipped = match &missing {
            Some(why) => Some(why.as_str()),
            None if report.quick() && name != "equal_recorded" => Some("takes minutes"),
            None => None,
        };
        if let Some(why) = skipped {
            report.skip(name, &format!("<= {goal}"), why);
            continue;
        }
        // The second run reads the parameters that the first one leaves there.
        let folder = tempfile::tempdir()?;
        let _: Vec<Value> =
            python.torchrun("equality.py", &format!("--system ddp {args}"), folder.path())?;
        let workers: Vec<Difference> =
            python.torchrun("equality.py", &format!("--system paceline {args}"), folder.path())?;
        let Some(worst) = workers.into_iter().max_by(|a, b| a.worst.total_cmp(&b.worst)) else {
            continue;
        };
        let Difference { worst, tensor, loss_difference } = worst;
        let note = format!(
            "100 steps, {args}: the worst element's difference is {worst:.3} of rtol 1e-5 and atol 1e-7 (in \
             {tensor}), losses differ by at most {loss_difference:.1e} of their value"
        );
        report.at_most(name, if parameters { worst } else { loss_difference }, goal, note);
        if !parameters {
            let args = format!("--system ddp --shift 1 {args}");
            let reordered: Vec<Difference> =
                python.torchrun("equality.py", &args, folder.path())?;
            let own = reordered.iter().map(|worker| worker.worst).fold(0.0, f64::max);
            let note = format!(
                "the worst element's difference to DDP, {worst:.1} of its tolerance, over that of DDP to \
                 itself with its sums in another order, {own:.1}; key biases are left out"
            );
            report.at_most(&format!("{name}_tensors"), worst / own, REORDERED, note);
        }
    }
    Ok(())
}
