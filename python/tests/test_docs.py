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
    assert len(added) <= 5, added


PLACEHOLDERS = r"…|\b[ABNV]\b|HOST:PORT|`"
"""The parts of a message that differ from case to case."""


def messages() -> list[str]:
    """The messages of the guide's table of errors."""
    table = (ROOT / "docs" / "pytorch.md").read_text().split("\n## Errors\n")[1]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    return [a or b for row in rows for a, b in re.findall(r"`` ?(.*?) ?``|`([^`]+)`", row)]


@pytest.fixture(scope="module")
def sources() -> str:
    """All code that writes messages, with texts that span several lines put together."""
    files = [*(ROOT / "python" / "paceline").rglob("*.py"), *(ROOT / "crates").glob("*/src/**/*.rs")]
    text = "\n".join(file.read_text() for file in files)
    return re.sub(r"""\\\n\s*|["']\s*\n\s*f?["']""", "", text).replace('\\"', '"')


@pytest.mark.parametrize("message", messages())
def test_every_message_of_the_table_of_errors_is_in_the_sources(message, sources):
    fixed = [part.strip(" ():,") for part in re.split(PLACEHOLDERS, message.removeprefix("refused: "))]
    fixed = [part for part in fixed if len(part) > 2]
    assert fixed
    assert [part for part in fixed if part not in sources] == []


def difference(name: str) -> str:
    """The unified diff from the DDP twin, without context and without the modules' docstrings."""
    ddp, ours = (code(EXAMPLES / f"{name}{twin}.py") for twin in ("_ddp", ""))
    lines = difflib.unified_diff(ddp, ours, n=0, lineterm="")
    return "".join(f"{line}\n" for line in list(lines)[2:] if not line.startswith("@@"))


def code(path: Path) -> list[str]:
    _, _, rest = path.read_text().split('"""', 2)
    return rest.splitlines()
