//! A run from its settings to its summary, whoever starts the workers.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use paceline_core::{
    CostBias, Costs, Event, EventKind, Ledger, NoiseScale, OrderSpec, StopReason, Version,
};
use paceline_model::Model;
use paceline_nn::Workload;
use paceline_params::{
    FlatVec,
    checkpoint::{self, Damaged, Latest},
};
use paceline_report::Usage;
use paceline_server::{
    CheckpointConfig, Evaluation, Evaluator, Outcome, SavedState, ServerConfig, ServerError, Start,
    serve, serve_offered,
};
use paceline_wire::offer::Offer;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{oneshot, watch},
};

use crate::{
    cli::RunArgs,
    config::RunConfig,
    console::{print, say},
    descriptors,
    display::{Display, Goal},
    event_log::EventLog,
    launch::Crew,
    model,
    offered::{ModelSource, OfferedRun, Resumption},
    run_dir::RunDir,
    settings::TaskSettings,
    summary::Summary,
};

/// Everything a run needs, ready to begin.
pub(crate) struct Session {
    config: RunConfig,
    dir: RunDir,
    task: Task,
    json: bool,
}

/// What a run trains.
enum Task {
    Native(Box<NativeTask>),
    Offered(Box<OfferedRun>),
}

/// A model of this program.
struct NativeTask {
    start: Start,
    server: ServerConfig,
    evaluator: Option<Evaluator>,
    /// Where it is known what samples cost.
    bias: Option<CostBias>,
}

/// Where the other processes of a run are.
#[derive(Clone)]
pub(crate) struct Others {
    /// This process starts the workers.
    pub(crate) own_workers: bool,
    /// It starts them with a command of the user's.
    pub(crate) command: bool,
    /// Shards are processes that will call.
    pub(crate) remote_shards: bool,
    /// What lets them in.
    pub(crate) token: Option<String>,
}

/// The most worker processes on one machine.
const MAX_OWN_WORKERS: u32 = 1024;

impl Others {
    fn check(&self, config: &RunConfig, resumed: bool) -> Result<()> {
        let slow = !config.faults.stragglers.is_empty() || config.faults.nominal.is_some();
        let error = match self.own_workers {
            true if config.cluster.workers > MAX_OWN_WORKERS => format!(
                "{} worker processes are more than the {MAX_OWN_WORKERS} that one machine is given",
                config.cluster.workers
            ),
            true if config.is_offered() && !self.command => {
                "with --model offered the workers bring their model: give --command".to_owned()
            }
            // A run that was begun by `train` may be gone on with on several machines.
            false if slow && !resumed => "workers are slow by themselves: give --stragglers and \
                                          --nominal to `paceline worker`"
                .to_owned(),
            false if self.remote_shards && config.faults.shard_nominal.is_some() && !resumed => {
                "shards in processes of their own are slow by themselves: give --shard-nominal to \
                 `paceline server --shard`"
                    .to_owned()
            }
            _ => return Ok(()),
        };
        Err(Usage(error).into())
    }
}

impl Session {
    /// A run of a model of this program, or of one that workers offer within `idle`.
    pub(crate) fn prepare(args: &RunArgs, others: Others, idle: Duration) -> Result<Self> {
        paceline_nn::single_threaded();
        let resumed = match &args.resume {
            Some(run) => {
                ensure!(args.config.is_none(), "a resumed run has its config; give flags instead");
                Some(RunDir::find(run, &args.flags.run_dir())?)
            }
            None => None,
        };
        let mut config = match &resumed {
            Some(dir) => RunConfig::resumed(&dir.config(), &args.flags)?,
            None => RunConfig::layered(args.config.as_deref(), &args.flags)?,
        };
        config.settle();
        others.check(&config, resumed.is_some())?;
        check_descriptors(&config, &others)?;
        let TaskSettings { model, ref data, ref costs, balance, seed } = config.task;
        let ModelSource::Native(model) = model else {
            let (dir, resumption) = match resumed {
                Some(dir) => {
                    config.record.name = dir.name();
                    let resumption = Resumption::read(&dir, newest_checkpoint(&dir)?)?;
                    (dir, Some(resumption))
                }
                None => (RunDir::create(&mut config)?, None),
            };
            let own = (args.config.as_deref(), &args.flags);
            let run = OfferedRun::new(own, config.clone(), others, idle, resumption);
            return Ok(Session {
                config,
                dir,
                task: Task::Offered(Box::new(run)),
                json: args.json,
            });
        };
        let workload = Workload::load(model, data, seed)?.costing(costs.as_ref(), seed)?;
        let balanced_by = workload.costs.as_deref().filter(|_| balance).map(Costs::fingerprint);
        let (tensors, params) = workload.begin(seed)?;
        let fresh = Start {
            tensors,
            params: FlatVec::from(params),
            slots: Vec::new(),
            version: Version(0),
            step: 0,
            ledger: None,
            noise: NoiseScale::default(),
        };
        let run_time_model = model::load(config.round.run_time_model.as_deref().map(Path::new))?;
        let (dir, start) = match resumed {
            Some(dir) => {
                let start = resume(&dir, &config, balanced_by, &fresh)?;
                config.record.name = dir.name();
                check_unfinished(&dir, &config, &start, Some(workload.samples))?;
                dir.write_config(&config)?;
                (dir, start)
            }
            None => (RunDir::create(&mut config)?, fresh),
        };
        let samples = workload.samples;
        let server = ServerConfig {
            balance: balanced_by,
            ..server_config(&config, run_time_model, &dir, Some(samples), others)?
        };
        for doubt in config.doubts() {
            say(format_args!("note: {doubt}"));
        }
        let (evaluator, json) = (workload.evaluator()?.map(for_server), args.json);
        let bias = workload.costs.map(|costs| {
            let costs = Costs::new(costs, config.round.batch);
            let balance = balance.then(|| costs.clone());
            CostBias::new(OrderSpec { balance, ..OrderSpec::new(seed, samples) }, costs)
        });
        let task = Task::Native(Box::new(NativeTask { start, server, evaluator, bias }));
        Ok(Session { config, dir, task, json })
    }

    /// Runs to the end and says what came of it. `start_crew` starts workers, if it is this process
    /// that does.
    pub(crate) fn run(
        self,
        listener: TcpListener,
        start_crew: impl FnOnce(&RunConfig, &RunDir, watch::Receiver<u64>) -> Result<Option<Crew>>,
    ) -> Result<ExitCode> {
        let Session { config, dir, mut task, json } = self;
        let runtime = runtime()?;
        // From here on Ctrl-C is heard, so nobody who is started is left behind.
        let told_to_stop = {
            let _inside = runtime.enter();
            told_to_stop()?
        };
        // An offer may change the settings until the run starts.
        let (in_force, bias) = match &mut task {
            Task::Native(native) => (Arc::new(Mutex::new(config.clone())), native.bias.take()),
            Task::Offered(run) => (run.config(), None),
        };
        let settings = Arc::clone(&in_force);
        let settings = move || settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (rounds, open) = watch::channel(0);
        let (events, recorder) = record(&dir, settings.clone(), rounds, bias)?;
        let crew = start_crew(&config, &dir, open)?;
        let quorum = config.round.quorum;
        let gone = crew.as_ref().map(Crew::all_gone);
        let interrupt = async move {
            tokio::select! {
                () = told_to_stop => StopReason::Interrupted,
                () = or_never(gone) => {
                    StopReason::QuorumLost { live: 0, quorum, grace: Duration::ZERO }
                }
            }
        };
        listener.set_nonblocking(true)?;
        let outcome: Result<Outcome> = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            Ok(task.serve(&dir, listener, events, interrupt).await?)
        });
        let (recorded, cost_bias) =
            recorder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if let (Ok(outcome), Some(crew)) = (&outcome, &crew)
            && outcome.reason.is_success()
            && outcome.reason != StopReason::Interrupted
        {
            runtime.block_on(crew.finished());
        }
        let words = crew.as_ref().map(Crew::last_words).unwrap_or_default();
        let all_failed = crew.as_ref().is_some_and(Crew::all_failed);
        drop(crew);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return unstarted(error, &words),
        };

        let config = settings();
        let summary = Summary::new(&config, &outcome, cost_bias);
        dir.write_summary(&summary)?;
        if json {
            print(serde_json::to_string(&summary)?);
        } else {
            print(format_args!("{summary}\n  record    {}", dir.path().display()));
        }
        if !summary.success {
            for words in words {
                say(format_args!("a worker's last words: {words}"));
            }
            say(format_args!("error: {}", summary.reason));
        }
        recorded?;
        Ok(match outcome.reason {
            StopReason::Failed(_) | StopReason::Diverged(_) => ExitCode::FAILURE,
            StopReason::QuorumLost { .. } => ExitCode::from(3),
            StopReason::Interrupted => ExitCode::from(130),
            _ if all_failed => {
                say("error: every worker failed");
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        })
    }
}

impl Task {
    async fn serve(
        self,
        dir: &RunDir,
        listener: tokio::net::TcpListener,
        events: mpsc::Sender<Event>,
        interrupt: impl Future<Output = StopReason>,
    ) -> Result<Outcome, ServerError> {
        match self {
            Task::Native(native) => {
                let NativeTask { start, server, evaluator, .. } = *native;
                serve(server, start, listener, evaluator, events, interrupt).await
            }
            Task::Offered(run) => {
                let config = run.config();
                let patience = {
                    let config = config.lock().unwrap_or_else(PoisonError::into_inner);
                    config.round.liveness.0
                };
                let peers = (run.others.token.clone(), patience, run.idle);
                let plan =
                    |offer: &Offer| run.plan(offer, dir).map_err(|error| format!("{error:#}"));
                let resumed = run.resumed();
                serve_offered(peers, resumed, plan, listener, events, interrupt).await
            }
        }
    }
}

/// The exit code of a run that ended before it started.
fn unstarted(error: anyhow::Error, words: &[String]) -> Result<ExitCode> {
    let code = match error.downcast_ref() {
        Some(ServerError::Stopped(StopReason::Interrupted)) => {
            say("interrupted before it began");
            return Ok(ExitCode::from(130));
        }
        Some(ServerError::Stopped(_) | ServerError::NoOffer(_)) => ExitCode::from(3),
        _ => return Err(error),
    };
    for words in words {
        say(format_args!("a worker's last words: {words}"));
    }
    say(format_args!("error: {error}"));
    Ok(code)
}

/// Checks that this process may open as many files as the run needs.
pub(crate) fn check_descriptors(config: &RunConfig, others: &Others) -> Result<()> {
    let shards = if others.remote_shards { 0 } else { config.cluster.shards };
    descriptors::check(config.cluster.workers, shards, others.own_workers)
}

/// The newest whole checkpoint of a run. Newer ones that are damaged are named on standard error.
fn newest_checkpoint(dir: &RunDir) -> Result<PathBuf> {
    let latest = checkpoint::latest(&dir.checkpoints())?;
    let Latest { path, damaged } =
        latest.with_context(|| format!("{} has no checkpoint", dir.path().display()))?;
    for Damaged { path: newer, error } in &damaged {
        say(format_args!(
            "warning: the checkpoint {} is damaged: {error}; the run resumes from the older {}",
            newer.display(),
            path.display()
        ));
    }
    Ok(path)
}

/// The newest whole checkpoint of a run, if it fits what is to be trained now.
fn resume(dir: &RunDir, config: &RunConfig, balance: Option<u64>, fresh: &Start) -> Result<Start> {
    let path = newest_checkpoint(dir)?;
    let saved = checkpoint::read(&path)?;
    let context = || format!("in the checkpoint {}", path.display());
    let differs = |what: &str, then: &str, now: &str| {
        format!("the {what} was {then} and is {now} now; start a new run for that")
    };
    let (optimizer, model) = (saved.optimizer.to_string(), saved.model.clone());
    let (start, state) = Start::resume(saved).with_context(context)?;
    let balance = SavedState::balance(balance, config.round.batch);
    let now = [
        ("model", model, config.task.model.to_string()),
        ("optimizer", optimizer, config.update.optimizer.to_string()),
        ("seed", state.seed.to_string(), config.task.seed.to_string()),
        ("balance of batches", state.balance, balance),
        ("data", state.data, config.task.data.to_string()),
    ];
    for (what, then, now) in &now {
        ensure!(then == now, differs(what, then, now));
    }
    ensure!(
        start.tensors == fresh.tensors,
        "the tensors in the checkpoint {} are not those of this {}",
        path.display(),
        config.task.model
    );
    Ok(start)
}

/// A run that has come to its end leaves nothing to do, and its summary as it is.
pub(crate) fn check_unfinished(
    dir: &RunDir,
    config: &RunConfig,
    start: &Start,
    samples: Option<u32>,
) -> Result<()> {
    let (limits, rounds) = (config.limits(), start.version.0);
    let ledger = start.ledger.as_ref().zip(samples);
    let ledger = ledger.map(|(state, samples)| Ledger::resume(state, samples, None));
    let epochs = ledger.transpose()?.map_or(0, |ledger| ledger.epochs());
    let earlier = dir.read_summary().filter(|earlier| earlier.version == rounds);
    let (accuracy, loss) =
        earlier.map_or((None, None), |earlier| (earlier.test_accuracy, earlier.test_loss));
    let (done, flag) = match () {
        () if limits.rounds.is_some_and(|limit| rounds >= limit) => {
            (format!("{rounds} rounds are done"), "larger --rounds")
        }
        () if limits.epochs.is_some_and(|limit| epochs >= limit) => {
            (format!("{epochs} epochs are done"), "larger --epochs")
        }
        () if limits.accuracy.zip(accuracy).is_some_and(|(limit, now)| now >= limit) => {
            ("its test accuracy is reached".to_owned(), "larger --target-accuracy")
        }
        () if limits.loss.zip(loss).is_some_and(|(limit, now)| now <= limit) => {
            ("its test loss is reached".to_owned(), "smaller --target-loss")
        }
        () => return Ok(()),
    };
    let name = config.record.name.as_deref().unwrap_or_default();
    let error = format!("the run {name} is finished: {done}; to go on, give a {flag}");
    Err(Usage(error).into())
}

/// The server's evaluator from the model's.
fn for_server(
    mut evaluate: impl FnMut(&[f32]) -> paceline_nn::Evaluation + Send + 'static,
) -> Evaluator {
    Box::new(move |params| {
        let paceline_nn::Evaluation { loss, accuracy } = evaluate(params);
        Evaluation { loss, accuracy }
    })
}

/// Rounds between checkpoints of a run without epochs.
const STREAM_CHECKPOINTS: u64 = 100;

/// The most rounds between checkpoints of a run whose workers bring their model: its epochs may be long.
const OFFERED_CHECKPOINTS: u64 = 500;

pub(crate) fn server_config(
    config: &RunConfig,
    run_time_model: Arc<Model>,
    dir: &RunDir,
    samples: Option<u32>,
    others: Others,
) -> Result<ServerConfig> {
    let epoch = samples.map_or(STREAM_CHECKPOINTS, |samples| config.rounds_per_epoch(samples));
    let save = if config.is_offered() { epoch.min(OFFERED_CHECKPOINTS) } else { epoch };
    // Shards in processes of their own are given their faults there.
    let own_shards = if others.remote_shards { 0 } else { config.cluster.shards };
    let (plan, nominal) = (config.fault_plan()?, config.faults.shard_nominal.map(|span| span.0));
    let shard_faults = |shard| Some((shard, plan.shard(shard, nominal)?));
    Ok(ServerConfig {
        name: config.record.name.clone().unwrap_or_default(),
        model: config.task.model.to_string(),
        data: config.task.data.to_string(),
        weak: config.weak_sync(),
        shard_faults: (0..own_shards).filter_map(shard_faults).collect(),
        costs: config.task.costs.as_ref().map(ToString::to_string).unwrap_or_default(),
        balance: None,
        seed: config.task.seed,
        samples,
        epoch_barrier: config.is_offered(),
        policy: config.round.policy,
        objective: config.objective(),
        run_time_model,
        round: config.round_config(),
        placement: config.placement(others.remote_shards),
        wire: config.cluster.wire,
        update: config.update_config(),
        limits: config.limits(),
        deterministic: config.round.deterministic,
        checkpoints: Some(CheckpointConfig {
            dir: dir.checkpoints(),
            every: config.record.checkpoint_every.unwrap_or(save),
            keep: config.record.keep_checkpoints,
        }),
        evaluate_every: config.record.eval_every.unwrap_or(epoch),
        heartbeat: config.heartbeat(),
        liveness: config.round.liveness.0,
        token: others.token,
        transport: config.cluster.transport,
    })
}

fn goal(config: &RunConfig) -> Goal {
    let (limits, weight) = (config.limits(), config.samples_per_round() as f64);
    Goal { rounds: limits.rounds, epochs: limits.epochs, weight }
}

/// Whether the log was written, and by how much what came into updates costs more than what was handed
/// out.
type Recorded = (Result<()>, Option<f64>);

/// Starts the thread that writes the log and draws the display; it ends with the events. A log that
/// cannot be written is said at once and again at the end; the run goes on. `settings` are those in force
/// when the run starts; `rounds` gets the number of each round that opens.
fn record(
    dir: &RunDir,
    settings: impl FnOnce() -> RunConfig + Send + 'static,
    rounds: watch::Sender<u64>,
    mut bias: Option<CostBias>,
) -> Result<(mpsc::Sender<Event>, JoinHandle<Recorded>)> {
    let (sender, events) = mpsc::channel::<Event>();
    let mut log = EventLog::open(&dir.events())?;
    let recorder = thread::Builder::new().name("recorder".to_owned()).spawn(move || {
        let mut logged = Ok(());
        let Ok(first) = events.recv() else { return (logged, None) };
        let mut display = Display::new(goal(&settings()));
        let mut next = Some(first);
        while let Some(first) = next.take() {
            for event in std::iter::once(first).chain(events.try_iter()) {
                if let EventKind::RoundStarted { round, .. } = event.kind {
                    rounds.send_replace(round.0);
                }
                if let Some(bias) = &mut bias {
                    bias.see(&event.kind);
                }
                if logged.is_ok() {
                    logged = log.add(&event);
                }
                display.event(&event);
            }
            if logged.is_ok() {
                logged = log.flush();
                if let Err(error) = &logged {
                    say(format_args!("the run goes on, unrecorded: {error:#}"));
                }
            }
            next = events.recv().ok();
        }
        (logged, bias.as_ref().and_then(CostBias::mean))
    })?;
    Ok((sender, recorder))
}

async fn or_never(future: Option<impl Future<Output = ()>>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Resolves on Ctrl-C, a termination signal, or when the terminal is closed. A second Ctrl-C ends the
/// process at once, and so does a first signal that nobody waits for any more.
fn told_to_stop() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        if tell.send(()).is_ok() {
            say("stopping: writing a checkpoint; Ctrl-C again to stop at once");
            if interrupt.recv().await.is_none() {
                return;
            }
        }
        std::process::exit(130);
    });
    Ok(async move {
        if told.await.is_err() {
            std::future::pending().await
        }
    })
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(crate::host::cores().clamp(1, 4))
        .thread_name("connections")
        .enable_all()
        .build()
        .context("failed to start the runtime")
}
