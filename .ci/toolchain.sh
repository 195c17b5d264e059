# Sourced by ./paceline and ./test: what building needs, installed where it is missing.
set -euo pipefail
root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
if ! command -v cc >/dev/null; then
  command -v apt-get >/dev/null || { echo "no C linker (cc) here: install gcc or clang" >&2; exit 1; }
  echo "installing a C linker (gcc)" >&2
  root apt-get update && root apt-get install -y gcc libc6-dev
fi
if ! command -v cargo >/dev/null; then
  command -v curl >/dev/null || { echo "no Rust here: see https://rustup.rs" >&2; exit 1; }
  echo "installing Rust (rustup, into ~/.cargo)" >&2
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
fi
