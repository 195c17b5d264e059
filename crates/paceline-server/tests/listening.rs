//! A server without a token never listens where other machines reach it.

mod common;

use std::{net::SocketAddr, sync::mpsc};

use common::{config, start};
use paceline_core::StopReason;
use paceline_server::{ServerConfig, ServerError, ShardConfig, serve, serve_shard};
use tokio::net::TcpListener;

/// What becomes of a server on `address`. A server that begins is interrupted at once.
async fn coordinator(address: &str, token: Option<&str>) -> Result<(), ServerError> {
    let config = ServerConfig { token: token.map(str::to_owned), ..config(1) };
    let listener = TcpListener::bind(address).await.unwrap();
    let interrupt = std::future::ready(StopReason::Interrupted);
    serve(config, start(), listener, None, mpsc::channel().0, interrupt).await.map(drop)
}

/// What becomes of a shard on `address`. Its coordinator hangs up at once.
async fn shard(address: &str, token: Option<&str>) -> Result<(), ServerError> {
    let listener = TcpListener::bind(address).await.unwrap();
    let (stream, _) = tokio::io::duplex(64);
    let token = token.map(str::to_owned);
    let config = ShardConfig { index: 0, of: 1, address: String::new(), token, faults: None };
    serve_shard(config, stream, listener).await
}

#[track_caller]
fn refused(outcome: Result<(), ServerError>) -> bool {
    match outcome {
        Err(ServerError::MissingToken(error)) => {
            let SocketAddr::V4(address) = error.0 else { panic!("{error}") };
            assert!(address.ip().is_unspecified(), "{error}");
            true
        }
        _ => false,
    }
}

#[tokio::test]
async fn a_coordinator_beyond_loopback_is_refused_without_a_token() {
    assert!(refused(coordinator("0.0.0.0:0", None).await));
    assert!(refused(coordinator("0.0.0.0:0", Some("")).await), "an empty token is none");
    assert!(!refused(coordinator("0.0.0.0:0", Some("secret")).await));
    assert!(!refused(coordinator("127.0.0.1:0", None).await));
}

#[tokio::test]
async fn a_shard_beyond_loopback_is_refused_without_a_token() {
    assert!(refused(shard("0.0.0.0:0", None).await));
    assert!(!refused(shard("0.0.0.0:0", Some("secret")).await));
    assert!(!refused(shard("127.0.0.1:0", None).await));
}
