"""``python -m paceline``: the command line, as the program ``paceline``."""

from __future__ import annotations

import signal
import sys

from paceline import _native


def main() -> int:
    """Runs the command line with the arguments of this process and returns its exit code."""
    # The command line handles Ctrl-C itself; Python's handler would only take note of it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(sys.argv[1:], [sys.executable, "-m", "paceline"])


if __name__ == "__main__":
    sys.exit(main())
