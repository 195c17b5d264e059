//! A worker inside a Python training loop.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use paceline_core::{EpochOrder, OrderSpec, Portion, SampleRange, Version};
use paceline_params::{
    LrScaling, LrScalingError, OptimizerGroups, OptimizerSpec, ParamHash, TensorSpec,
};
use paceline_policy::wait_for_answers;
use paceline_wire::{
    Tcp, Transport,
    message::{FromWorker, ToWorker},
    offer::{Offer, OfferedUpdate},
};
use paceline_worker::{
    Embedded, Joining, Turn, WorkerConfig, WorkerError,
    state::{self, Offered, Progress},
};
use pyo3::{
    Bound, IntoPyObjectExt, Py, PyAny, PyResult, Python, create_exception,
    exceptions::{PyRuntimeError, PyValueError},
    pyclass, pyfunction, pymethods,
    types::{PyAnyMethods, PyBytes, PyDict, PyDictMethods},
};

use crate::interrupt::{interruptible, interruptible_for, while_no_signal};

/// An epoch, and ranges of positions in its order.
type PortionOf = (u32, Vec<(u32, u32)>);

/// A worker of a run. A thread of its own talks to the run; the methods hand over gradients and versions.
#[pyclass(module = "paceline._native", frozen)]
pub(crate) struct Worker {
    embedded: Arc<Embedded>,
    config: WorkerConfig,
    order: Mutex<EpochOrder>,
}

create_exception!(
    paceline._native,
    ConnectionLost,
    PyRuntimeError,
    "The connection to the run failed, or the run refused this worker."
);

fn failed(error: WorkerError) -> pyo3::PyErr {
    ConnectionLost::new_err(error.to_string())
}

fn patience(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn portion(portion: &Portion) -> PortionOf {
    let ranges = portion.ranges().iter().map(|range| (range.start, range.end)).collect();
    (portion.epoch().unwrap_or_default(), ranges)
}

#[pymethods]
impl Worker {
    /// Joins the run at `address`.
    #[staticmethod]
    #[pyo3(signature = (address, token, wish, name, tcp = false))]
    fn join(
        py: Python<'_>,
        address: String,
        token: Option<String>,
        wish: Option<u32>,
        name: String,
        tcp: bool,
    ) -> PyResult<Self> {
        let transport = if tcp { Transport::Tcp } else { Transport::Auto };
        let config = WorkerConfig { address, token, wish, name, faults: None, transport };
        let joining = config.clone();
        let join = move || Embedded::join(joining, Box::new(Tcp), wait_for_answers);
        let embedded = interruptible(py, join)?.map_err(failed)?;
        Ok(Worker { embedded: Arc::new(embedded), config, order: Mutex::new(EpochOrder::none()) })
    }

    #[getter]
    fn number(&self) -> u32 {
        self.embedded.job().worker.0
    }

    #[getter]
    fn version(&self) -> u64 {
        self.embedded.job().version.0
    }

    /// May be given work, from this version on. A worker that `clears` may call `clear`.
    fn ready(&self, version: u64, samples: Option<u32>, ahead: u32, clears: bool) {
        self.embedded.ready(Joining { version: Version(version), samples, ahead, clears });
    }

    fn restored(&self, version: u64) {
        self.embedded.restored(Version(version));
    }

    /// Waits for work, given as version, epoch and ranges, or for a version (`"loaded"`).
    fn next(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<Py<PyAny>>> {
        let patience = patience(seconds)?;
        let turn = py.detach(|| self.embedded.next(patience));
        py.check_signals()?;
        match turn {
            Turn::Work(work) => {
                let (epoch, ranges) = portion(&work.portion);
                (work.base.0, epoch, ranges).into_py_any(py).map(Some)
            }
            Turn::Loaded(_) => "loaded".into_py_any(py).map(Some),
            Turn::Nothing | Turn::Ended(_) => Ok(None),
        }
    }

    /// Waits for a version to take.
    fn next_version(&self, py: Python<'_>, seconds: f64) -> PyResult<Option<u64>> {
        let patience = patience(seconds)?;
        let turn = py.detach(|| self.embedded.next_version(patience));
        py.check_signals()?;
        Ok(match turn {
            Turn::Loaded(version) => Some(version.0),
            _ => None,
        })
    }

    fn newest(&self) -> u64 {
        self.embedded.newest().0
    }

    fn taken(&self) -> u64 {
        self.embedded.taken().0
    }

    fn is_next_waiting(&self) -> bool {
        self.embedded.is_next_waiting()
    }

    /// Copies the oldest version that waits into `values`; returns it.
    fn take(&self, mut values: PyReadwriteArray1<'_, f32>) -> PyResult<Option<u64>> {
        let to = values.as_slice_mut()?;
        let copy = |version: Version, from: &[f32]| match to.len() == from.len() {
            true => {
                to.copy_from_slice(from);
                Ok(version.0)
            }
            false => Err((to.len(), from.len())),
        };
        match self.embedded.take(copy) {
            Some(Err((to, from))) => Err(PyValueError::new_err(format!(
                "an array of {to} values for a version of {from}"
            ))),
            taken => Ok(taken.and_then(Result::ok)),
        }
    }

    fn begin(&self, py: Python<'_>, parts: u32) -> PyResult<bool> {
        while_no_signal(py, |goes_on| self.embedded.begin_while(parts, goes_on))
    }

    /// Adds `scale` times `values` to the gradient. Returns whether it is finite; `None` after a cut.
    fn write(
        &self,
        at: usize,
        values: PyReadonlyArray1<'_, f32>,
        scale: f32,
    ) -> PyResult<Option<bool>> {
        Ok(self.embedded.write(at, values.as_slice()?, scale))
    }

    fn skip(&self, at: usize, len: usize) -> bool {
        self.embedded.skip(at, len)
    }

    fn clear(&self, at: usize, len: usize) {
        self.embedded.clear(at, len);
    }

    /// The current micro-batch is computed again from its start. False if it cannot be: a part of it was
    /// added to earlier ones.
    fn restart(&self) -> bool {
        self.embedded.restart()
    }

    #[pyo3(signature = (weight, loss, rates))]
    fn finish(
        &self,
        py: Python<'_>,
        weight: f64,
        loss: Option<f64>,
        rates: Vec<f32>,
    ) -> PyResult<bool> {
        while_no_signal(py, |goes_on| self.embedded.finish_while(weight, loss, rates, goes_on))
    }

    fn is_cut(&self) -> bool {
        self.embedded.is_cut()
    }

    fn forget(&self) {
        self.embedded.forget();
    }

    /// The close of the round on this version, if it is one of the last: weight used of this worker,
    /// contributions, weight, seconds to the cut, reason.
    fn closed(&self, base: u64) -> Option<(f64, u32, f64, f64, String)> {
        let closed = self.embedded.closed(Version(base))?;
        let seconds = closed.cut_after.as_secs_f64();
        Some((closed.used, closed.accepted, closed.weight, seconds, closed.reason))
    }

    /// The epoch of the round that made a version; `None` if it is not known yet.
    fn epoch_of(&self, version: u64) -> Option<u32> {
        self.embedded.epoch_of(Version(version))
    }

    /// Workers that the run was planned for.
    #[getter]
    fn workers(&self) -> u32 {
        self.embedded.job().workers
    }

    fn epochs(&self) -> u32 {
        self.embedded.epochs()
    }

    fn leases(&self) -> Vec<PortionOf> {
        self.embedded.leases().iter().map(portion).collect()
    }

    /// Samples of ranges of an epoch, as indices into the data.
    fn indices(&self, epoch: u32, ranges: Vec<(u32, u32)>) -> PyResult<Vec<u32>> {
        let job = self.embedded.job();
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if order.epoch() != epoch || order.samples(0, 0).is_none() {
            *order = OrderSpec::new(job.seed, job.samples.unwrap_or(0)).epoch(epoch);
        }
        let mut samples = Vec::new();
        for (start, end) in ranges {
            let range = SampleRange { epoch, start, end };
            let found = order.samples(start, end);
            let outside = || PyValueError::new_err(format!("{range} is outside the data"));
            samples.extend_from_slice(found.ok_or_else(outside)?);
        }
        Ok(samples)
    }

    /// The coordinator's messages since the last call, as kind and value.
    fn messages(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, Py<PyAny>)>> {
        let told = self.embedded.messages().into_iter().filter_map(|message| match message {
            ToWorker::Records { first, records } => {
                let told = PyDict::new(py);
                for (version, record) in (first.0..).zip(&records) {
                    if let Err(error) = told.set_item(version, PyBytes::new(py, record)) {
                        return Some(Err(error));
                    }
                }
                Some((first.0, told).into_py_any(py).map(|told| ("records", told)))
            }
            ToWorker::Mismatch { version, places } => {
                Some((version.0, places).into_py_any(py).map(|told| ("mismatch", told)))
            }
            ToWorker::SendState { at_least } => {
                Some(at_least.0.into_py_any(py).map(|told| ("send_state", told)))
            }
            ToWorker::StateReady { version } => {
                Some(version.0.into_py_any(py).map(|told| ("state_ready", told)))
            }
            _ => None,
        });
        told.collect()
    }

    fn wait_for_message(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let patience = patience(seconds)?;
        py.detach(|| self.embedded.wait_for_message(patience));
        py.check_signals()
    }

    fn stepped(&self, version: u64, record: Vec<u8>) -> PyResult<()> {
        self.send(FromWorker::Stepped { version: Version(version), record })
    }

    fn want_records(&self, first: u64, last: u64) -> PyResult<()> {
        self.send(FromWorker::WantRecords { first: Version(first), last: Version(last) })
    }

    fn send_hashes(&self, version: u64, hashes: Vec<u64>) -> PyResult<()> {
        self.send(FromWorker::Hashes { version: Version(version), hashes })
    }

    fn want_state(&self, at_least: u64) -> PyResult<()> {
        self.send(FromWorker::WantState { at_least: Version(at_least) })
    }

    /// Sends the server this worker's state of a version.
    fn upload_state(&self, py: Python<'_>, version: u64, state: &[u8]) -> PyResult<()> {
        let job = self.embedded.job();
        let upload = |progress: Progress<'_>| {
            let me = (job.worker, job.session);
            state::upload(&self.config, &Tcp, me, Version(version), state, progress)
        };
        py.detach(|| upload(&mut |_, _| ControlFlow::Continue(()))).map_err(failed)
    }

    /// The newest state that the server has.
    fn download_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (job, config) = (self.embedded.job(), self.config.clone());
        let me = (job.worker, job.session);
        let (_, bytes) =
            transfer(py, move |progress| state::download(&config, &Tcp, me, progress))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Whether a round has closed whose version was not taken.
    fn is_behind(&self) -> bool {
        self.embedded.is_behind()
    }

    /// The reason why the run is over, if it is.
    fn ended(&self) -> Option<String> {
        self.embedded.ended().map(|ended| ended.unwrap_or_else(|error| error))
    }

    /// Whether the run is over for this worker alone: it lost the connection, or was dismissed.
    fn lost(&self) -> bool {
        matches!(self.embedded.ended(), Some(Err(_)))
    }

    /// Whether the run is over for all workers because it failed.
    fn failed(&self) -> bool {
        self.embedded.has_failed()
    }

    /// Leaves the run. Waits for a server that does not answer for this long.
    fn leave(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let embedded = Arc::clone(&self.embedded);
        match interruptible_for(py, Some(patience(seconds)?), move || embedded.leave())? {
            Some(left) => left.map(drop).map_err(failed),
            None => Err(ConnectionLost::new_err("the server did not answer in time")),
        }
    }
}

impl Worker {
    fn send(&self, message: FromWorker) -> PyResult<()> {
        self.embedded.send(message).map_err(failed)
    }
}

/// Runs a transfer that Ctrl-C ends.
fn transfer<T: Send + 'static>(
    py: Python<'_>,
    run: impl FnOnce(Progress<'_>) -> Result<T, WorkerError> + Send + 'static,
) -> PyResult<T> {
    let wanted = Arc::new(());
    let waiting = Arc::downgrade(&wanted);
    let done = interruptible(py, move || {
        run(&mut |_, _| match waiting.strong_count() {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    });
    drop(wanted);
    done?.map_err(failed)
}

/// A tensor's name, shape and parameter group.
type Tensor = (String, Vec<usize>, u32);

/// Offers a model to the server. If the offer defines the run, sends the state that `state` returns. Returns
/// `None` if the worker keeps its own state, else the version of the run's state that it must take, and the
/// places of tensors whose initial values differ; the place after the last tensor stands for what is frozen.
#[pyfunction]
#[pyo3(signature = (
    address, token, *, tensors, hashes, frozen_bytes, frozen_hash, optimizers, steppers, samples, batch, seed, micro_batches, settings, state
))]
#[expect(clippy::too_many_arguments, reason = "one keyword argument for each field of an offer")]
pub(crate) fn offer(
    py: Python<'_>,
    address: String,
    token: Option<String>,
    tensors: Vec<Tensor>,
    hashes: Vec<u64>,
    frozen_bytes: u64,
    frozen_hash: u64,
    optimizers: Option<Vec<String>>,
    steppers: Vec<String>,
    samples: Option<u32>,
    batch: u32,
    seed: u64,
    micro_batches: u32,
    settings: BTreeMap<String, String>,
    state: Bound<'_, PyAny>,
) -> PyResult<Option<(u64, Vec<u32>)>> {
    let spec = |(name, shape, group): Tensor| TensorSpec { name, shape, group };
    let offer = Offer {
        tensors: tensors.into_iter().map(spec).collect(),
        hashes,
        frozen_bytes,
        frozen_hash,
        update: update(optimizers)?,
        steppers,
        samples,
        batch,
        seed,
        micro_batches,
        package: env!("CARGO_PKG_VERSION").to_owned(),
        settings,
    };
    let config = WorkerConfig { address, token, ..WorkerConfig::default() };
    match interruptible(py, move || state::offer(&config, &Tcp, &offer))?.map_err(failed)? {
        Offered::Keep => Ok(None),
        Offered::Take { version, differing } => Ok(Some((version.0, differing))),
        Offered::Define(upload) => {
            let blob: Vec<u8> = state.call0()?.extract()?;
            transfer(py, move |progress| upload.send(&blob, progress))?;
            Ok(None)
        }
    }
}

fn update(optimizers: Option<Vec<String>>) -> PyResult<OfferedUpdate> {
    let Some(groups) = optimizers else { return Ok(OfferedUpdate::Mean) };
    let groups: Result<Vec<OptimizerSpec>, _> = groups.iter().map(|group| group.parse()).collect();
    let groups = groups.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let groups = OptimizerGroups::new(groups);
    Ok(OfferedUpdate::Server(groups.map_err(|error| PyValueError::new_err(error.to_string()))?))
}

/// The factor on the learning rate of an update of this weight, by a rule of the setting `lr-scaling`.
#[pyfunction]
pub(crate) fn lr_factor(rule: &str, weight: f64, reference: f64) -> PyResult<f32> {
    let rule: LrScaling =
        rule.parse().map_err(|error: LrScalingError| PyValueError::new_err(error.to_string()))?;
    Ok(rule.factor(weight, reference, None))
}

/// The hash of an array.
#[pyfunction]
pub(crate) fn hash_values(values: PyReadonlyArray1<'_, f32>) -> PyResult<u64> {
    Ok(ParamHash::from_values(0, values.as_slice()?).bits())
}
