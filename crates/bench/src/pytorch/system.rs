//! The systems that are compared, and the networks that they train.

/// A system, as `worker.py` knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct System {
    pub(super) name: &'static str,
    /// The module that it needs.
    pub(super) module: &'static str,
    pub(super) args: &'static str,
}

impl System {
    pub(super) const ALONE: System =
        System { name: "no communication", module: "torch", args: "--system alone" };
    pub(super) const DDP: System = System { name: "DDP", module: "torch", args: "--system ddp" };
    pub(super) const MEAN: System = System {
        name: "paceline, mode mean",
        module: "paceline",
        args: "--system paceline --mode mean --policy full",
    };
    pub(super) const SERVER: System = System {
        name: "paceline, mode server",
        module: "paceline",
        args: "--system paceline --mode server --policy full",
    };
    pub(super) const SALVAGE: System = System {
        name: "paceline, salvage",
        module: "paceline",
        args: "--system paceline --straggler salvage --micro-batches 4",
    };
    pub(super) const ABORT: System = System {
        name: "paceline, no salvage",
        module: "paceline",
        args: "--system paceline --straggler abort --micro-batches 4",
    };
    pub(super) const TORCHFT: System =
        System { name: "torchft 0.2", module: "torchft", args: "--system torchft" };
    /// Its workers go at their own pace and take no part in each other's steps: with three epochs they train
    /// about as long as DDP takes for one where a worker is three times as slow.
    pub(super) const HIVEMIND: System =
        System { name: "hivemind 1.1", module: "hivemind", args: "--system hivemind --epochs 3" };

    pub(super) const PEERS: [System; 2] = [System::TORCHFT, System::HIVEMIND];
}

/// A network with its data, as `worker.py` knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// Samples per worker and step.
    pub(super) batch: usize,
}

impl Workload {
    /// 1,000 parameters.
    pub(super) const LINEAR: Workload = Workload { name: "linear", batch: 32 };
    pub(super) const CNN: Workload = Workload { name: "cnn", batch: 32 };
    pub(super) const GPT_SMALL: Workload = Workload { name: "gpt-0.8m", batch: 4 };
    pub(super) const GPT_LARGE: Workload = Workload { name: "gpt-10m", batch: 4 };
}
