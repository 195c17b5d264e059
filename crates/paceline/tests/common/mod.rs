//! The real program, run in a folder of its own.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    fs,
    io::Read,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use paceline_core::{Event, EventKind};
use serde_json::Value;

/// A folder in which the program runs; removed at the end.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// A folder with two IDX images in each half, of so many pixels a side.
    pub fn write_images(&self, folder: &str, train: u8, test: u8) {
        fs::create_dir(self.path(folder)).unwrap();
        for (half, side) in [("train", train), ("t10k", test)] {
            let mut images = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, side, 0, 0, 0, side];
            images.resize(16 + 2 * usize::from(side).pow(2), 7);
            let labels = [0, 0, 8, 1, 0, 0, 0, 2, 3, 9];
            let path = |kind: &str| self.path(folder).join(format!("{half}-{kind}"));
            fs::write(path("images-idx3-ubyte"), images).unwrap();
            fs::write(path("labels-idx1-ubyte"), labels).unwrap();
        }
    }

    /// A folder with CIFAR-10's files, of so many records each.
    pub fn write_cifar(&self, folder: &str, records: u8) {
        fs::create_dir(self.path(folder)).unwrap();
        let record = |i: u8| [vec![i % 10], vec![i.wrapping_mul(31); 1024], vec![i; 2048]].concat();
        let records: Vec<u8> = (0..records).flat_map(record).collect();
        let train = (1..=5).map(|batch| format!("data_batch_{batch}.bin"));
        for name in train.chain(["test_batch.bin".to_owned()]) {
            fs::write(self.path(folder).join(name), &records).unwrap();
        }
    }

    pub fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(args.split_whitespace()).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs to the end.
    #[track_caller]
    pub fn run(&self, args: &str) -> Ended {
        Ended::new(self.command(args).output().unwrap())
    }

    /// Starts, and leaves running.
    pub fn start(&self, args: &str) -> Running {
        let mut command = self.command(args);
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub fn events(&self, run: &str) -> Vec<Event> {
        let text = fs::read_to_string(self.path("runs").join(run).join("events.jsonl"));
        let text = text.unwrap_or_default();
        text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until the run's log holds an event as wanted.
    #[track_caller]
    pub fn wait_for(&self, run: &str, wanted: impl Fn(&EventKind) -> bool) {
        wait_until("the event", || self.events(run).iter().any(|event| wanted(&event.kind)));
    }
}

/// Waits until something is so, for a minute at most.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processes that `parent` has started and that are still there: number and command line.
pub fn children(parent: u32) -> Vec<(u32, String)> {
    let child = |process: fs::DirEntry| {
        let pid = process.file_name().to_string_lossy().parse().ok()?;
        let read = |file: &str| fs::read_to_string(process.path().join(file)).ok();
        let mine = read("status")?.lines().any(|line| line == format!("PPid:\t{parent}"));
        Some((pid, read("cmdline")?.replace('\0', " "))).filter(|_| mine)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(child).collect()
}

/// A process that is ended with the test, whatever happens.
pub struct Running(pub Child);

impl Running {
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Reads what a server says until it says where it listens.
    #[track_caller]
    pub fn listening(&mut self) -> String {
        let stderr = self.0.stderr.as_mut().unwrap();
        let (mut said, mut byte) = (Vec::new(), [0]);
        loop {
            stderr.read_exact(&mut byte).expect("it ended before it listened");
            said.push(byte[0]);
            let text = String::from_utf8_lossy(&said);
            if let Some((_, address)) = text.split_once("listening on ")
                && let Some(address) = address.strip_suffix('\n')
            {
                return address.to_owned();
            }
        }
    }

    pub fn wait(mut self) -> Ended {
        let read = |pipe: Option<&mut dyn std::io::Read>| {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                pipe.read_to_end(&mut bytes).unwrap();
            }
            bytes
        };
        let stdout = read(self.0.stdout.as_mut().map(|p| p as &mut dyn std::io::Read));
        let stderr = read(self.0.stderr.as_mut().map(|p| p as &mut dyn std::io::Read));
        let status = self.0.wait().unwrap();
        Ended::new(Output { status, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn new(output: Output) -> Self {
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Failed with this code and a message that has all these parts.
    #[track_caller]
    pub fn failed(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in: {}", self.stderr);
        }
        self
    }

    /// The one line of JSON on standard output.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.stdout.trim_end().lines().count(), 1, "{}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap()
    }
}
