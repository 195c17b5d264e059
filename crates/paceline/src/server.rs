//! `paceline server`: a coordinator, or one shard, for workers on any machine.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use paceline_faults::FaultPlan;
use paceline_report::Usage;
use paceline_server::{ShardConfig, ShardFaults, check_bind, serve_shard};

use crate::{
    cli::{RunArgs, ServerArgs},
    console::say,
    flags::RunFlags,
    session::{Others, Session, runtime},
    settings::FaultSettings,
};

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline server --workers 4                        on loopback; workers: paceline worker
  PACELINE_TOKEN=… paceline server --bind 0.0.0.0:4747   for workers on other machines
  paceline server --model offered --workers 4        for workers that bring their model
  paceline server --remote-shards --shards 2         shards in processes of their own:
  paceline server --shard 0/2 --coordinator 127.0.0.1:4747 --bind 127.0.0.1:4750
  paceline server --shard 1/2 --coordinator 127.0.0.1:4747 --bind 127.0.0.1:4751";

pub(crate) fn run(args: &ServerArgs) -> Result<ExitCode> {
    if args.shard.is_some() {
        refuse_settings(&args.run)?;
    }
    let token = token(args.token_file.as_deref())?;
    let listener = listen(&args.bind, token.as_deref())?;
    if let (Some(shard), Some(coordinator)) = (&args.shard, &args.coordinator) {
        let (index, of) = parse_shard(shard)?;
        let address = match &args.advertise {
            Some(address) => address.clone(),
            None => listener.local_addr()?.to_string(),
        };
        let faults = shard_faults(&args.run.flags, index)?;
        let config = ShardConfig { index, of, address, token, faults };
        return run_shard(config, coordinator, listener);
    }
    let remote_shards = args.remote_shards;
    let others = Others { own_workers: false, command: false, remote_shards, token };
    let session = Session::prepare(&args.run, others, args.idle.0)?;
    let address = listener.local_addr()?;
    if let Some(path) = &args.address_file {
        write_address(path, address)?;
    }
    say(format_args!("listening on {address}"));
    session.run(listener, |_, _, _| Ok(None))
}

/// Writes the address and the process id, separated by a space. The file is whole as soon as it is there.
fn write_address(path: &Path, address: SocketAddr) -> Result<()> {
    let draft = path.with_added_extension("tmp");
    let write = || {
        fs::write(&draft, format!("{address} {}\n", std::process::id()))?;
        fs::rename(&draft, path)
    };
    write().with_context(|| format!("failed to write {}", path.display()))
}

/// The settings that a shard has of its own.
const SHARD_SETTINGS: [&str; 2] = ["stragglers", "shard-nominal"];

/// A shard is told by its coordinator what the run is.
fn refuse_settings(args: &RunArgs) -> Result<()> {
    let mut given = args.flags.given();
    given.retain(|name| !SHARD_SETTINGS.contains(&name.as_str()));
    given.extend(args.config.is_some().then(|| "a config file".to_owned()));
    given.extend(args.resume.is_some().then(|| "resume".to_owned()));
    given.extend(args.json.then(|| "json".to_owned()));
    match given.is_empty() {
        true => Ok(()),
        false => {
            let given = given.join(", ");
            let error = format!("a shard has its settings from its coordinator: leave out {given}");
            Err(Usage(error).into())
        }
    }
}

/// The faults that the shard `index` is given on its own command line.
fn shard_faults(flags: &RunFlags, index: u32) -> Result<Option<Arc<dyn ShardFaults>>> {
    let FaultSettings { stragglers, shard_nominal, .. } = flags.table().clone().try_into()?;
    let plan: FaultPlan = stragglers.parse().map_err(|error| Usage(format!("{error}")))?;
    if !plan.concerns_only_shard(index) {
        let error = format!(
            "shard {index} bears its own faults only: shard:{index}:FACTOR, shard-link:{index}:RATE, \
             shard-stop:{index}:EVERY:FOR"
        );
        return Err(Usage(error).into());
    }
    Ok(plan.shard(index, shard_nominal.map(|span| span.0)))
}

fn listen(address: &str, token: Option<&str>) -> Result<TcpListener> {
    use std::net::ToSocketAddrs;
    let resolved = address
        .to_socket_addrs()
        .with_context(|| format!("`{address}` is no address: write HOST:PORT"))?;
    for address in resolved.clone() {
        check_bind(address, token)?;
    }
    let resolved: Vec<_> = resolved.collect();
    TcpListener::bind(&*resolved).with_context(|| format!("failed to listen on {address}"))
}

/// From a file or the environment; never a flag, which anybody on the machine can read.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<String>> {
    let token = match file {
        Some(path) => Some(
            fs::read_to_string(path)
                .with_context(|| format!("failed to read the token {}", path.display()))?,
        ),
        None => std::env::var("PACELINE_TOKEN").ok(),
    };
    let token = token.map(|token| token.trim().to_owned());
    if let Some(token) = &token {
        ensure!(!token.is_empty(), "the token is empty");
        ensure!(token.len() <= 1024, "the token is longer than 1024 bytes");
    }
    Ok(token)
}

fn parse_shard(text: &str) -> Result<(u32, u32)> {
    let parts = text.split_once('/').and_then(|(i, of)| Some((i.parse().ok()?, of.parse().ok()?)));
    let (index, of) =
        parts.with_context(|| format!("`{text}` is no shard: write 0/2 for the first of two"))?;
    ensure!(index < of, "there is no shard {index} of {of}: shards are numbered from 0");
    Ok((index, of))
}

fn run_shard(config: ShardConfig, coordinator: &str, listener: TcpListener) -> Result<ExitCode> {
    let ShardConfig { index, of, .. } = config;
    say(format_args!("shard {index}/{of} listening on {}", listener.local_addr()?));
    listener.set_nonblocking(true)?;
    runtime()?.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let stream = tokio::net::TcpStream::connect(coordinator)
            .await
            .with_context(|| format!("failed to reach the coordinator at {coordinator}"))?;
        stream.set_nodelay(true)?;
        tokio::select! {
            outcome = serve_shard(config, stream, listener) => outcome?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(130)),
        }
        Ok(ExitCode::SUCCESS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_numbered_from_nought() {
        assert_eq!(parse_shard("1/2").unwrap(), (1, 2));
        for wrong in ["2/2", "1", "a/b", "", "1/0"] {
            assert!(parse_shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_open_door_needs_a_token() {
        let refused = listen("0.0.0.0:0", None).unwrap_err().to_string();
        assert!(refused.contains("without a token"), "{refused}");
        assert!(listen("127.0.0.1:0", None).is_ok());
        assert!(listen("0.0.0.0:0", Some("secret")).is_ok());
    }
}
