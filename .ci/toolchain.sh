# Sourced by ./paceline, ./test and .ci/run: what building needs, installed where it is missing.
set -euo pipefail
root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
say() { echo "$*" >&2; }

# install WHAT PACKAGE…: from the distribution, where it has apt.
install() {
  local what=$1 && shift
  command -v apt-get >/dev/null || { say "no $what here: install it and come back"; exit 1; }
  say "installing $what ($*)"
  root apt-get update && root apt-get install -y "$@"
}

# components: what the lints need beside the compiler.
components() {
  local tool component
  for tool in fmt clippy; do
    cargo "$tool" --version >/dev/null 2>&1 && continue
    if [ "$tool" = fmt ]; then component=rustfmt; else component=clippy; fi
    command -v rustup >/dev/null || { say "no $component here: install it beside cargo"; exit 1; }
    say "installing $component (rustup component)"
    rustup component add "$component"
  done
}

command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
command -v cc >/dev/null || install "a C linker" gcc libc6-dev
if ! command -v cargo >/dev/null; then
  command -v curl >/dev/null || install curl curl ca-certificates
  say "installing Rust (rustup, into ~/.cargo)"
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
fi

# A distribution's cargo may be older than this project.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../Cargo.toml")
found=$(cargo --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
  say "cargo $found ($(command -v cargo)) is older than the $wanted that this needs"
  if command -v rustup >/dev/null; then
    say "run: rustup update stable"
  else
    say "install a newer Rust beside it, see https://rustup.rs, and put ~/.cargo/bin first in PATH"
  fi
  exit 1
fi
