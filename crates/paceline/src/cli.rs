//! Commands and flags.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use paceline_compare::CompareArgs;
use paceline_core::Span;
use paceline_faults::{LinkSpec, Rate, hog};
use paceline_policy::POLICIES;
use paceline_report::Usage;
use paceline_wire::Transport;
use tracing_subscriber::EnvFilter;

use crate::{
    analyze::{self, AnalyzeArgs},
    compare, console, descriptors,
    flags::RunFlags,
    host,
    model::{self, ModelArgs},
    server,
    simulate::{self, SimulateArgs},
    train, worker,
};

/// Synchronous SGD on machines that do not all keep the same pace.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train on this machine: starts a server and workers, shows progress, keeps a record
    #[command(after_help = train::EXAMPLES)]
    Train(TrainArgs),
    /// Run a coordinator (and its shards), or one shard, for workers on any machine
    #[command(after_help = server::EXAMPLES)]
    Server(ServerArgs),
    /// Work for a server
    #[command(after_help = worker::EXAMPLES)]
    Worker(WorkerArgs),
    /// Tell from run-times what stragglers cost and what could be saved
    #[command(after_help = analyze::EXAMPLES)]
    Analyze(AnalyzeArgs),
    /// Replay run-times under policies, with the code that decides live
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(Box<SimulateArgs>),
    /// Train under several policies and conditions, and tell who reaches an accuracy first
    #[command(after_help = compare::EXAMPLES)]
    Compare(CompareArgs),
    /// Fit a model of a cluster's run-times for bdsgd and auto, or tell how good one is
    #[command(after_help = model::EXAMPLES)]
    Model(ModelArgs),
    /// List the policies
    Policies(PoliciesArgs),
    /// Keep a core busy until standard input closes
    #[command(hide = true)]
    Hog(HogArgs),
    /// Keep a slow link until standard input closes
    #[command(hide = true)]
    Link(LinkArgs),
    /// Become a worker's command
    #[command(hide = true)]
    Exec(ExecArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Command of a worker that brings its model, such as `python train.py`. It is started --workers
    /// times, with PACELINE_SERVER and PACELINE_WORKER set
    #[arg(long, value_name = "COMMAND", conflicts_with = "model")]
    pub(crate) command: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Settings as TOML; the environment goes over it, flags over both
    pub(crate) config: Option<PathBuf>,
    /// Go on with a run from its last checkpoint: its name, or its folder
    #[arg(long, value_name = "RUN", conflicts_with = "name")]
    pub(crate) resume: Option<String>,
    /// Print the summary as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// End with whoever started this
    #[arg(long, hide = true)]
    pub(crate) tied: bool,
    #[command(flatten)]
    pub(crate) flags: RunFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Address to listen on; anything but loopback needs a token
    #[arg(long, env = "PACELINE_BIND", default_value = "127.0.0.1:4747", value_name = "ADDR")]
    pub(crate) bind: String,
    /// File to write the address and the process id to, once the server listens
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: Option<PathBuf>,
    /// With --model offered, how long to wait for the first worker
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) idle: Span,
    /// File that holds the token which peers must show (or PACELINE_TOKEN)
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The shards are other processes, which will call (`--shard`)
    #[arg(long, conflicts_with = "shard")]
    pub(crate) remote_shards: bool,
    /// Be one shard of several, for the coordinator at --coordinator: 0/2 is the first of two
    #[arg(long, value_name = "I/S", requires = "coordinator")]
    pub(crate) shard: Option<String>,
    /// Where a shard finds its coordinator
    #[arg(long, value_name = "ADDR", requires = "shard")]
    pub(crate) coordinator: Option<String>,
    /// Where workers reach this shard, if not at --bind
    #[arg(long, value_name = "ADDR", requires = "shard")]
    pub(crate) advertise: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The coordinator's address
    #[arg(long, env = "PACELINE_CONNECT", value_name = "ADDR", default_value = "127.0.0.1:4747")]
    pub(crate) connect: String,
    /// File that holds the token (or PACELINE_TOKEN)
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The data, if it lies elsewhere on this machine than the server says
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<String>,
    /// What samples cost, if that lies elsewhere
    #[arg(long, value_name = "FILE")]
    pub(crate) costs: Option<String>,
    /// The number this worker would like
    #[arg(long, value_name = "N")]
    pub(crate) index: Option<u32>,
    /// How long to go on trying to reach the server
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) patience: Span,
    /// Slowness on purpose: slow, stalls, kill and node, as for train
    #[arg(long, value_name = "SPEC", default_value = "")]
    pub(crate) stragglers: String,
    /// Pad a round to this long
    #[arg(long, value_name = "TIME")]
    pub(crate) nominal: Option<Span>,
    /// What gradients and parameters go by: auto (shared memory with shards of this host that offer
    /// it, else TCP) or tcp
    #[arg(long, env = "PACELINE_TRANSPORT", default_value = "auto")]
    pub(crate) transport: Transport,
    /// Stay on this core
    #[arg(long, value_name = "CORE", hide = true)]
    pub(crate) pin: Option<usize>,
    /// End with whoever started this
    #[arg(long, hide = true)]
    pub(crate) tied: bool,
    /// Let others go first
    #[arg(long, value_name = "MORE", hide = true)]
    pub(crate) nice: Option<i32>,
}

#[derive(Debug, Args)]
struct PoliciesArgs {
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct HogArgs {
    /// Stay on this core
    #[arg(long, value_name = "CORE")]
    pin: Option<usize>,
}

/// A worker's command, and the conditions that it runs under.
#[derive(Debug, Args)]
struct ExecArgs {
    /// Stay on this core
    #[arg(long, value_name = "CORE")]
    pin: Option<usize>,
    /// Let others go first
    #[arg(long, value_name = "MORE")]
    nice: Option<i32>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct LinkArgs {
    /// The process whose worker it is for; names are made from it
    #[arg(long, value_name = "PID")]
    owner: u32,
    /// The worker
    #[arg(long, value_name = "N")]
    worker: u32,
    /// Bits per second, each way
    #[arg(long)]
    rate: Rate,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match std::env::current_exe() {
        Ok(exe) => run(std::env::args_os().skip(1), &[exe.into_os_string()]),
        Err(error) => {
            eprintln!("error: failed to find this program: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command line with these arguments, which do not include the program's name. `program` is
/// the command that starts it again, for the processes of a run: an executable and its first
/// arguments.
///
/// # Panics
/// If `program` is empty.
pub fn run(arguments: impl IntoIterator<Item = OsString>, program: &[OsString]) -> ExitCode {
    assert!(!program.is_empty(), "a program has a name");
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::try_from_env("PACELINE_LOG").unwrap_or_else(|_| EnvFilter::new("warn")),
        )
        .with_writer(|| console::Diagnostics)
        .init();
    descriptors::raise_limit();
    let arguments = [OsString::from("paceline")].into_iter().chain(arguments);
    let code = match execute(Cli::parse_from(arguments).command, program) {
        Ok(code) => code,
        Err(error) => {
            console::say(format_args!("error: {}", explain(&error)));
            match error.is::<Usage>() {
                true => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    };
    console::flush();
    // In a process that is not a Rust program nobody else does.
    let _ = io::stdout().flush();
    code
}

/// Lists the policies, one line each.
fn policies(json: bool) -> Result<ExitCode> {
    for (name, about) in POLICIES {
        match json {
            true => println!("{}", serde_json::json!({ "policy": name, "about": about })),
            false => println!("{name:12} {about}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The error and what caused it, leaving out what was said already.
fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn execute(command: Command, program: &[OsString]) -> Result<ExitCode> {
    match command {
        Command::Train(args) => train::run(&args, program),
        Command::Server(args) => server::run(&args),
        Command::Worker(args) => worker::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Analyze(args) => analyze::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Compare(args) => compare::run(args, program),
        Command::Model(args) => model::run(&args),
        Command::Policies(args) => policies(args.json),
        Command::Hog(args) => {
            if let Some(core) = args.pin {
                host::pin(core)?;
            }
            hog()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Link(LinkArgs { owner, worker, rate }) => {
            LinkSpec { owner, worker, rate }.keep()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Exec(ExecArgs { pin, nice, command }) => {
            host::end_with_parent()?;
            pin.map_or(Ok(()), host::pin)?;
            nice.map_or(Ok(()), host::give_way)?;
            Err(host::become_command(&command))
        }
    }
}
