#!/usr/bin/env bash
# Fits the generic prior anew: clusters of many kinds, sizes and tempers, all synthetic. Minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
clusters=(
    nodes158:n=96,rounds=800
    nodes158-stalls:n=96,rounds=800
    nodes158-stalls:n=64,nodes=6,p=0.003,rounds=800
    nodes158-stalls:n=24,nodes=1,p=0.02,rounds=800
    nodes16-stalls
    nodes16-stalls:n=32,nodes=8,p=0.005
    shift48:rounds=800
    shift48:n=24,nodes=3,rounds=600,at=200,share=0.5,factor=1.7
    shift48:n=30,nodes=3,rounds=600,at=300,share=0.2,factor=0.5
    stalls
    stalls:n=48,sigma=0.01,p=0.003,rounds=800
    stalls:n=24,sigma=0.003,p=0.05,scale=0.5
    stalls:n=16,sigma=0.2,p=0.03
    stalls:n=8,sigma=0.02,p=0.01,scale=8
    ar:n=32,rounds=800
    ar:n=24,coefficient=0.5,sd=0.05,rounds=800
    ar:n=24,coefficient=0.99,sd=0.3,rounds=800
    iid-exp:n=64
    iid-exp:n=32,scale=1
    iid-pareto:n=64
    iid-lognormal:n=64
    lognormal:n=24,sigma=0.5
    lognormal:n=32,sigma=0.02
    pareto:n=32,shape=3
    phase:n=16
    phase:n=32,factor=1.3
    failure:n=24
)
# Seed 101: no preset at its own size and seed is among what the prior has seen.
exec cargo run --release -p paceline -- model fit --fresh --seed 101 --epochs 90 --patience 45 \
    "${clusters[@]/#/--synthetic=}" -o crates/paceline-model/prior.safetensors "$@"
