"""The documents agree with the code and the examples."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pytorch"


def test_the_api_reference_is_up_to_date():
    subprocess.run([sys.executable, str(ROOT / "python" / "api.py"), "--check"], check=True)


@pytest.mark.parametrize("name", ["mnist_cnn", "gpt_shakespeare"])
def test_the_guide_shows_the_difference_of_the_examples(name):
    shown = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), re.S)
    assert difference(name) in shown


@pytest.mark.parametrize("name", ["mnist_cnn", "gpt_shakespeare"])
def test_an_example_adds_five_lines_at_most(name):
    added = [line for line in difference(name).splitlines() if line.startswith("+")]
    assert len([line for line in added if "session" in line or "paceline" in line]) <= 5, added


def difference(name: str) -> str:
    """The unified diff from the DDP twin, without context and without the modules' docstrings."""
    ddp, ours = (code(EXAMPLES / f"{name}{twin}.py") for twin in ("_ddp", ""))
    lines = difflib.unified_diff(ddp, ours, n=0, lineterm="")
    return "".join(f"{line}\n" for line in list(lines)[2:] if not line.startswith("@@"))


def code(path: Path) -> list[str]:
    _, _, rest = path.read_text().split('"""', 2)
    return rest.splitlines()
