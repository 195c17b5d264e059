//! probe
use paceline_trace::generate;
use paceline_analysis::*;
fn main() {
    let seeds: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    for spec in std::env::args().skip(2) {
        let (mut events, mut workers, mut typical, mut slowest, mut groups) = (0,0,0,0,0);
        for seed in 1..=seeds {
            let trace = generate(&spec.parse().expect("spec"), seed);
            let a = analyze(&trace, &Options::default(), &mut |_| {});
            events += a.changes.workers.len();
            workers += a.changes.workers.iter().map(|w| w.workers.len()).sum::<usize>();
            typical += a.changes.typical.len();
            slowest += a.changes.slowest.len();
            groups += a.groups.groups.len();
        }
        println!("{spec}: over {seeds} seeds events {events} workers {workers} typical {typical} slowest {slowest} groups {groups}");
    }
}
