//! A run from its settings to its summary, whoever starts the workers.

use std::{
    net::TcpListener,
    process::ExitCode,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use paceline_core::{Event, StopReason, Version};
use paceline_params::{FlatVec, checkpoint};
use paceline_server::{CheckpointConfig, Evaluator, Outcome, ServerConfig, Start, serve};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::TrainArgs, config::RunConfig, display::Display, event_log::EventLog, launch::Crew,
    run_dir::RunDir, summary::Summary, workload::ServerSide,
};

/// Everything a run needs, ready to begin.
pub(crate) struct Session {
    config: RunConfig,
    dir: RunDir,
    start: Start,
    server: ServerConfig,
    evaluator: Option<Evaluator>,
    json: bool,
}

impl Session {
    pub(crate) fn prepare(args: &TrainArgs, remote: bool, token: Option<String>) -> Result<Self> {
        paceline_nn::single_threaded();
        let resumed = match &args.resume {
            Some(run) => {
                ensure!(args.config.is_none(), "a resumed run has its config; give flags instead");
                let defaults = RunConfig::layered(None, &args.flags)?;
                Some(RunDir::find(run, &defaults.run_dir)?)
            }
            None => None,
        };
        let file = resumed.as_ref().map(RunDir::config).or(args.config.clone());
        let mut config = RunConfig::layered(file.as_deref(), &args.flags)?;
        let side = ServerSide::new(config.model, &config.data, config.seed)?;
        let fresh = Start {
            tensors: side.tensors,
            params: FlatVec::from(side.params),
            slots: Vec::new(),
            version: Version(0),
            step: 0,
            ledger: None,
        };
        let (dir, start) = match resumed {
            Some(dir) => {
                let start = resume(&dir, &config, &fresh)?;
                dir.write_config(&config)?;
                (dir, start)
            }
            None => (RunDir::create(&mut config)?, fresh),
        };
        let server = server_config(&config, &dir, side.samples, remote, token);
        let (evaluator, json) = (side.evaluator, args.json);
        Ok(Session { config, dir, start, server, evaluator, json })
    }

    pub(crate) fn config(&self) -> &RunConfig {
        &self.config
    }

    pub(crate) fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// Runs to the end and says what came of it.
    pub(crate) fn run(self, listener: TcpListener, crew: Option<Crew>) -> Result<ExitCode> {
        let Session { config, dir, start, server, evaluator, json } = self;
        let goal = goal(&server, &config);
        let (events, recorder) = record(&dir, goal)?;
        let outcome = drive(server, start, listener, evaluator, events, crew.as_ref());
        let recorded = recorder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let outcome = outcome?;
        recorded?;
        let orphaned = outcome.reason == StopReason::Interrupted
            && crew.as_ref().is_some_and(|crew| is_ready(crew.all_gone()));
        let words = crew.as_ref().map(Crew::last_words).unwrap_or_default();
        drop(crew);

        let mut summary = Summary::new(&config, &outcome);
        if orphaned {
            summary.reason = "all workers ended".to_owned();
            summary.success = false;
        }
        dir.write_summary(&summary)?;
        if json {
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            println!("{summary}\n  record    {}", dir.path().display());
        }
        if !summary.success {
            for words in words {
                eprintln!("a worker's last words: {words}");
            }
            eprintln!("error: {}", summary.reason);
        }
        Ok(match outcome.reason {
            _ if orphaned => ExitCode::FAILURE,
            StopReason::Failed(_) => ExitCode::FAILURE,
            StopReason::QuorumLost { .. } => ExitCode::from(3),
            StopReason::Interrupted => ExitCode::from(130),
            _ => ExitCode::SUCCESS,
        })
    }
}

/// The last checkpoint of a run, if it fits what is to be trained now.
fn resume(dir: &RunDir, config: &RunConfig, fresh: &Start) -> Result<Start> {
    let path = checkpoint::latest(&dir.checkpoints())?;
    let path = path.with_context(|| format!("{} has no checkpoint", dir.path().display()))?;
    let saved = checkpoint::read(&path)?;
    let context = || format!("in the checkpoint {}", path.display());
    let differs = |what: &str, then: &str, now: &str| {
        format!("the {what} was {then} and is {now} now; start a new run for that")
    };
    let (optimizer, model) = (saved.optimizer.to_string(), saved.model.clone());
    let (start, state) = Start::resume(saved).with_context(context)?;
    let now = [
        ("model", model, config.model.to_string()),
        ("optimizer", optimizer, config.optimizer.to_string()),
        ("seed", state.seed.to_string(), config.seed.to_string()),
        ("data", state.data, config.data.to_string()),
    ];
    for (what, then, now) in &now {
        ensure!(then == now, differs(what, then, now));
    }
    ensure!(
        start.tensors == fresh.tensors,
        "the tensors in the checkpoint {} are not those of this {}",
        path.display(),
        config.model
    );
    Ok(start)
}

fn server_config(
    config: &RunConfig,
    dir: &RunDir,
    samples: u32,
    remote: bool,
    token: Option<String>,
) -> ServerConfig {
    let epoch = config.rounds_per_epoch(samples);
    ServerConfig {
        name: config.name.clone().unwrap_or_default(),
        model: config.model.to_string(),
        data: config.data.to_string(),
        seed: config.seed,
        samples,
        batch: config.batch,
        micro_batches: config.micro_batches,
        policy: config.policy,
        round: config.round(),
        placement: config.placement(remote),
        update: config.update(),
        limits: config.limits(),
        deterministic: config.deterministic,
        checkpoints: Some(CheckpointConfig {
            dir: dir.checkpoints(),
            every: config.checkpoint_every.unwrap_or(epoch),
            keep: config.keep_checkpoints,
        }),
        evaluate_every: config.eval_every.unwrap_or(epoch),
        heartbeat: (config.liveness.0 / 5).min(Duration::from_secs(1)),
        liveness: config.liveness.0,
        token,
    }
}

/// The round at which the run will be over, if nobody is dropped.
fn goal(server: &ServerConfig, config: &RunConfig) -> Option<u64> {
    let epochs = server
        .limits
        .epochs
        .map(|epochs| u64::from(epochs) * config.rounds_per_epoch(server.samples));
    server.limits.rounds.into_iter().chain(epochs).min()
}

/// Starts the thread that writes the log and draws the display; it ends with the events.
fn record(
    dir: &RunDir,
    goal: Option<u64>,
) -> Result<(mpsc::Sender<Event>, JoinHandle<Result<()>>)> {
    let (sender, events) = mpsc::channel::<Event>();
    let mut log = EventLog::open(&dir.events())?;
    let recorder = thread::Builder::new().name("recorder".to_owned()).spawn(move || {
        let mut display = Display::new(goal);
        while let Ok(first) = events.recv() {
            for event in std::iter::once(first).chain(events.try_iter()) {
                log.add(&event)?;
                display.event(&event);
            }
            log.flush()?;
        }
        Ok(())
    })?;
    Ok((sender, recorder))
}

fn drive(
    server: ServerConfig,
    start: Start,
    listener: TcpListener,
    evaluator: Option<Evaluator>,
    events: mpsc::Sender<Event>,
    crew: Option<&Crew>,
) -> Result<Outcome> {
    listener.set_nonblocking(true)?;
    let gone = crew.map(Crew::all_gone);
    runtime()?.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let interrupt = async {
            tokio::select! {
                () = told_to_stop() => {}
                () = async {
                    match gone {
                        Some(gone) => gone.await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        };
        Ok(serve(server, start, listener, evaluator, events, interrupt).await?)
    })
}

/// Ctrl-C or a termination signal; a second Ctrl-C ends the process at once.
async fn told_to_stop() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    eprintln!("stopping: writing a checkpoint; Ctrl-C again to stop at once");
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(crate::host::cores().clamp(1, 4))
        .enable_all()
        .build()
        .context("failed to start the runtime")
}

fn is_ready(future: impl Future<Output = ()>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::pin!(future).poll(&mut context).is_ready()
}
