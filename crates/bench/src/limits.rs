//! The machine's own limits, measured in the same run: bare sockets and memory.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

/// Bytes read or written at a time.
const CHUNK: usize = 1 << 20;

/// Moves `bytes` each way over each of `connections` loopback connections at once, first all one
/// way, then all the other, as a round does; returns the time taken.
pub(crate) fn socket_round(connections: usize, bytes: usize) -> Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let far = thread::spawn(move || -> Result<()> {
        let ends: Vec<_> = (0..connections)
            .map(|_| {
                let (stream, _) = listener.accept()?;
                Ok(thread::spawn(move || echo(stream, bytes)))
            })
            .collect::<Result<_>>()?;
        ends.into_iter().try_for_each(|end| end.join().expect("a socket thread panicked"))
    });
    let streams: Vec<TcpStream> =
        (0..connections).map(|_| TcpStream::connect(address)).collect::<Result<_, _>>()?;
    let began = Instant::now();
    let near: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            thread::spawn(move || -> Result<()> {
                send(&mut stream, bytes)?;
                receive(&mut stream, bytes)
            })
        })
        .collect();
    near.into_iter().try_for_each(|end| end.join().expect("a socket thread panicked"))?;
    let took = began.elapsed();
    far.join().expect("a socket thread panicked")?;
    Ok(took)
}

fn echo(mut stream: TcpStream, bytes: usize) -> Result<()> {
    receive(&mut stream, bytes)?;
    send(&mut stream, bytes)
}

fn send(stream: &mut TcpStream, bytes: usize) -> Result<()> {
    stream.set_nodelay(true)?;
    let chunk = vec![1; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(CHUNK);
        stream.write_all(&chunk[..part])?;
        left -= part;
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, bytes: usize) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        left -= stream.read(&mut chunk[..left.min(CHUNK)])?;
    }
    Ok(())
}

/// STREAM add, a = b + c over `elements` floats by `threads` threads: bytes per second, best of three.
pub(crate) fn stream_add(elements: usize, threads: usize) -> f64 {
    let (b, c) = (vec![1.0f32; elements], vec![2.0f32; elements]);
    let mut a = vec![0.0f32; elements];
    let part = elements.div_ceil(threads);
    let add = |(a, (b, c)): (&mut [f32], (&[f32], &[f32]))| {
        for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
            *a = b + c;
        }
    };
    let seconds = best_of_three(|| {
        let parts = a.chunks_mut(part).zip(b.chunks(part).zip(c.chunks(part)));
        thread::scope(|scope| parts.for_each(|part| drop(scope.spawn(move || add(part)))));
        std::hint::black_box(&a);
    });
    (3 * elements * size_of::<f32>()) as f64 / seconds
}

/// The least seconds of three repetitions.
pub(crate) fn best_of_three(mut job: impl FnMut()) -> f64 {
    let mut time = || {
        let began = Instant::now();
        job();
        began.elapsed().as_secs_f64()
    };
    (0..3).map(|_| time()).fold(f64::INFINITY, f64::min)
}
