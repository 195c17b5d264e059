//! Size and network of a system, as users write it: `lan`, `wan:model=50MB`, `lan:shards=8,delay=1ms`.

use std::{fmt, ops::Range, str::FromStr, time::Duration};

use super::preset::{PRESETS, preset};

/// Shards and network of a simulated system. The [`World`](crate::World) has the number of workers
/// and their run-times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SystemSpec {
    /// The preset that it is based on.
    pub name: &'static str,
    /// Shards, from 1.
    pub shards: u32,
    /// Bytes of the parameters, and of a gradient; split evenly over the shards.
    pub model: f64,
    /// Bytes per second of each shard's link, in each direction.
    pub server_bandwidth: f64,
    /// Shard 0's share of that bandwidth; 1 for an ordinary shard.
    pub slow_shard: f64,
    /// Bytes per second of each worker's link, in each direction.
    pub worker_bandwidth: f64,
    /// One-way delay of every message.
    pub delay: Duration,
    /// Bytes per second at which a shard folds a contribution into the sum, and applies an update.
    pub fold: f64,
    /// How many times as long shard 0 takes to fold and update; 1 for an ordinary shard.
    pub slow_fold: f64,
    /// Rounds between stops of shard 0, each before its update; 0 for no stops.
    pub stop_every: u32,
    /// How long a stop lasts.
    pub stop_for: Duration,
}

impl SystemSpec {
    /// Bytes per shard.
    pub fn part(&self) -> f64 {
        self.model / f64::from(self.shards)
    }

    /// Time that a shard takes for one pass over its parameters.
    pub fn pass(&self) -> Duration {
        Duration::try_from_secs_f64(self.part() / self.fold).unwrap_or(Duration::MAX)
    }

    /// Groups of equal shards, each with whether it is slow: shard 0 alone if it is slow or stops,
    /// and the others.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (Range<u32>, bool)> + use<> {
        let slow = self.slow_shard < 1.0 || self.slow_fold > 1.0 || self.stop_every > 0;
        let slow = u32::from(slow);
        let kinds = [(0..slow, true), (slow..self.shards, false)];
        kinds.into_iter().filter(|(shards, _)| !shards.is_empty())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = |expected: &str| format!("`{key}={value}`: {expected}");
        let bandwidth = || {
            rate(value)
                .ok_or_else(|| wrong("write bits or bytes per second over 0 (10Gbit, 1.2GB)"))
        };
        match key {
            "shards" => {
                let shards = value.parse().ok().filter(|n| (1..=10_000).contains(n));
                self.shards = shards.ok_or_else(|| wrong("write a number from 1 to 10000"))?;
            }
            "model" => {
                self.model = bytes(value).ok_or_else(|| wrong("write bytes (0, 100MB, 1.5GB)"))?;
            }
            "server-bandwidth" => self.server_bandwidth = bandwidth()?,
            "worker-bandwidth" => self.worker_bandwidth = bandwidth()?,
            "fold" => self.fold = bandwidth()?,
            "slow-shard" => {
                let share = value.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
                self.slow_shard = share.ok_or_else(|| wrong("write a share over 0 and up to 1"))?;
            }
            "slow-fold" => {
                let times = value.parse().ok().filter(|times| (1.0..=1e6).contains(times));
                self.slow_fold = times.ok_or_else(|| wrong("write how many times, from 1"))?;
            }
            "stop-every" => {
                let rounds = value.parse();
                self.stop_every = rounds.map_err(|_| wrong("write a number of rounds"))?;
            }
            "stop-for" => {
                self.stop_for = delay(value).ok_or_else(|| wrong("write a time (2s, 500ms)"))?;
            }
            "delay" => {
                self.delay = delay(value).ok_or_else(|| wrong("write a time (0, 30ms, 50us)"))?;
            }
            _ => {
                return Err(format!(
                    "`{key}` is no parameter of a system: use model, shards, server-bandwidth, \
                     worker-bandwidth, delay, fold, slow-shard, slow-fold, stop-every or stop-for"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for SystemSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let mut spec = preset(name).ok_or_else(|| {
            let names = PRESETS.map(|(spec, _)| spec.name).join(", ");
            format!(
                "unknown system `{name}`: use {names}, with changes as in lan:model=50MB,shards=8"
            )
        })?;
        for pair in parameters.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("`{pair}` is not of the form key=value"))?;
            spec.set(key.trim(), value.trim())?;
        }
        if (spec.stop_every > 0) != (spec.stop_for > Duration::ZERO) {
            return Err("stop-every and stop-for go together: stop-every=50,stop-for=2s".to_owned());
        }
        Ok(spec)
    }
}

/// The preset and the values that differ from it; parses back to the same system.
impl fmt::Display for SystemSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = preset(self.name).unwrap_or(PRESETS[0].0);
        let nanos = |time: Duration| time.as_nanos() as f64;
        let every = |spec: &SystemSpec| f64::from(spec.stop_every);
        let figures = [
            ("model", self.model, base.model, "B"),
            ("shards", f64::from(self.shards), f64::from(base.shards), ""),
            ("server-bandwidth", self.server_bandwidth, base.server_bandwidth, "B"),
            ("worker-bandwidth", self.worker_bandwidth, base.worker_bandwidth, "B"),
            ("slow-shard", self.slow_shard, base.slow_shard, ""),
            ("delay", nanos(self.delay), nanos(base.delay), "ns"),
            ("fold", self.fold, base.fold, "B"),
            ("slow-fold", self.slow_fold, base.slow_fold, ""),
            ("stop-every", every(self), every(&base), ""),
            ("stop-for", nanos(self.stop_for), nanos(base.stop_for), "ns"),
        ];
        f.write_str(base.name)?;
        let changed = figures.iter().filter(|(_, own, preset, _)| own != preset);
        for (i, (key, own, _, unit)) in changed.enumerate() {
            write!(f, "{}{key}={own}{unit}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

/// Reads a number with one of these units, longer units first; returns it times the unit's factor.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let value = number.trim().parse::<f64>().ok()? * factor;
    (0.0..=1e18).contains(&value).then_some(value)
}

fn bytes(text: &str) -> Option<f64> {
    quantity(text, &[("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("kB", 1e3), ("B", 1.0), ("", 1.0)])
}

fn rate(text: &str) -> Option<f64> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let bits = [("Gbit", 1e9 / 8.0), ("Mbit", 1e6 / 8.0), ("kbit", 1e3 / 8.0)];
    quantity(text, &bits).or_else(|| bytes(text)).filter(|rate| *rate > 0.0)
}

fn delay(text: &str) -> Option<Duration> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("", 1e9)];
    quantity(text, &units).map(|nanos| Duration::from_nanos(nanos.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<SystemSpec>(), expected) {
            (Ok(spec), Ok(written)) => {
                assert_eq!(spec.to_string(), written);
                assert_eq!(written.parse(), Ok(spec));
            }
            (Err(got), Err(part)) => assert!(got.contains(part), "{got}"),
            (got, expected) => panic!("{text}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn systems_parse_or_name_what_is_expected() {
        check("lan", Ok("lan"));
        check("lan:", Ok("lan"));
        check("lan:shards=4", Ok("lan"));
        check("lan:model=1.5GB", Ok("lan:model=1500000000B"));
        check(
            "lan:server-bandwidth=1Gbit/s,delay=2ms",
            Ok("lan:server-bandwidth=125000000B,delay=2000000ns"),
        );
        check("wan:delay=0.5s,slow-shard=0.25", Ok("wan:slow-shard=0.25,delay=500000000ns"));
        check("tiny:fold=2GB,shards=3", Ok("tiny:shards=3,fold=2000000000B"));
        check("lan:slow-fold=5", Ok("lan:slow-fold=5"));
        check("lan:stop-for=2s,stop-every=50", Ok("lan:stop-every=50,stop-for=2000000000ns"));
        check("lan:slow-fold=0.5", Err("from 1"));
        check("lan:stop-every=50", Err("go together"));
        check("lan:stop-every=-1", Err("number of rounds"));
        check("moon", Err("unknown system `moon`"));
        check("lan:shards=0", Err("from 1"));
        check("lan:model=-1", Err("write bytes"));
        check("lan:model=NaN", Err("write bytes"));
        check("lan:fold=0", Err("over 0"));
        check("lan:delay=soon", Err("write a time"));
        check("lan:speed=3", Err("no parameter"));
        check("lan:fast", Err("key=value"));
    }
}
