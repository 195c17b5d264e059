//! probe
use paceline_analysis::*;
use paceline_trace::generate;
fn main() {
    for spec in std::env::args().skip(1) {
        for seed in 1..4 {
            let trace = generate(&spec.parse().expect("spec"), seed);
            let t = std::time::Instant::now();
            let a = analyze(&trace, &Options::default(), &mut |_| {});
            println!("{spec} {seed} {:?} thr {:.3}", t.elapsed(), a.groups.threshold);
            for g in a.groups.groups.iter().take(8) {
                println!(
                    "   {} {:.2} {:?}",
                    g.workers.len(),
                    g.correlation,
                    g.workers.iter().take(12).collect::<Vec<_>>()
                );
            }
            println!("   changes typical {:?} slowest {:?}", a.changes.typical, a.changes.slowest);
            println!("   n {}", a.changes.workers.iter().map(|w| w.workers.len()).sum::<usize>());
            for s in a.changes.workers.iter().take(6) {
                println!(
                    "   {} {:.3} {:?}",
                    s.round,
                    s.factor,
                    s.workers.iter().take(20).collect::<Vec<_>>()
                );
            }
        }
    }
}
