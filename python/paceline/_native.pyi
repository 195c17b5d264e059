"""The native part of the package `paceline`."""

from collections.abc import Sequence

def main(arguments: Sequence[str], program: Sequence[str]) -> int:
    """Runs the command line with these arguments and returns its exit code. `program` is the command
    that starts it again, for the processes of a run."""
