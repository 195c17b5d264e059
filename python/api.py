"""Writes docs/python-api.md, the API reference, from the package's signatures and docstrings.

    python python/api.py            # writes the file
    python python/api.py --check    # fails if the file is out of date
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline

FILE = Path(__file__).parents[1] / "docs" / "python-api.md"

HEAD = """\
# Python API

The reference of the package `paceline`, made from its docstrings by `python python/api.py`.
[From DDP to Paceline](pytorch.md) is the guide. Everything here is imported as `paceline.NAME`.
`paceline.__version__` is the version of the package.
"""

# Every public name, by section.
SECTIONS = {
    "Training": ["init", "Session", "Step", "LedgerLoader"],
    "Training without torch": ["init_arrays", "ArraySession"],
    "Recording and analysis": ["record", "Recorder", "analyze", "Analysis", "simulate", "Simulation"],
    "Errors": ["PacelineError", "RunEnded"],
}


def page() -> str:
    """The whole file."""
    listed = sorted(name for names in SECTIONS.values() for name in names)
    assert listed == sorted(paceline.__all__), "SECTIONS and paceline.__all__ differ"
    parts = [HEAD]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names:
            parts.extend(entry(name, getattr(paceline, name)))
    return "\n".join(parts)


def entry(name: str, item: Any) -> Iterator[str]:
    """A function, or a class and its members."""
    if not inspect.isclass(item):
        yield heading(3, f"paceline.{name}", item)
        return
    yield heading(3, f"class paceline.{name}", item)
    if dataclasses.is_dataclass(item):
        yield fields(item)
    for member, value in members(item):
        yield heading(4, f"{name}.{member}", value)


def members(item: type) -> list[tuple[str, Any]]:
    """Public methods and properties in the order of the source, those of private bases included."""
    found: dict[str, Any] = {}
    for base in reversed([base for base in item.__mro__ if base.__module__.startswith("paceline")]):
        found.update({n: v for n, v in vars(base).items() if not n.startswith("_")})
    return [(n, v) for n, v in found.items() if callable(v) or isinstance(v, property)]


def heading(level: int, name: str, item: Any) -> str:
    """Name, signature and docstring."""
    text = inspect.getdoc(item)
    assert text, f"{name} has no docstring"
    lines = [f"{'#' * level} {name}\n"]
    if isinstance(item, property):
        lines.append(f"Property: `{annotation(inspect.signature(item.fget).return_annotation)}`\n")
    elif inspect.isfunction(item):
        lines.append(f"```python\n{signature(name, item)}\n```\n")
    lines.append(markdown(text) + "\n")
    return "\n".join(lines)


def signature(name: str, item: Any) -> str:
    """The signature, with one parameter per line where it is long."""
    found = inspect.signature(item)
    shown = [p for p in found.parameters.values() if p.name != "self"]
    called = name.removeprefix("paceline.")
    words = [str(p.replace(annotation=annotation(p.annotation))).replace("'", "") for p in shown]
    words = [word if "=" not in word else default(word, p) for word, p in zip(words, shown)]
    kinds = [p.kind for p in shown]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = annotation(found.return_annotation)
    line = f"{called}({', '.join(words)}) -> {result}"
    if len(line) <= 96:
        return line
    return f"{called}(\n" + "".join(f"    {word},\n" for word in words) + f") -> {result}"


def default(word: str, parameter: inspect.Parameter) -> str:
    """A parameter with its default as Python writes it."""
    return word.rsplit("=", 1)[0].rstrip() + f" = {parameter.default!r}"


def annotation(found: Any) -> str:
    """A type as the source writes it."""
    return found if isinstance(found, str) else getattr(found, "__name__", "Any")


def fields(item: Any) -> str:
    """The fields of a dataclass, each with the docstring below it."""
    source = inspect.getsource(item)
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(item):
        found = re.search(rf'^    {field.name}: [^\n]*\n    """(.*?)"""', source, re.M | re.S)
        assert found, f"{item.__name__}.{field.name} has no docstring"
        rows.append(f"| `{field.name}` | `{field.type}` | {markdown(' '.join(found[1].split()))} |")
    return "\n".join(rows) + "\n"


def markdown(text: str) -> str:
    """A docstring as Markdown: roles and double backticks become code, arguments a list."""
    text = re.sub(r":(?:attr|class|func|meth):`([^`]+)`", r"`\1`", text).replace("``", "`")
    lines: list[str] = []
    in_section = in_code = False
    for line in text.splitlines():
        if in_code and line and not line.startswith("    "):
            lines[-1:] = ["```", ""]
            in_code = False
        if line in ("Args:", "Returns:", "Raises:"):
            in_section = True
            lines += [f"**{line}**", ""]
        elif in_section and (found := re.match(r"    (\w+): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif in_section:
            lines.append("  " + line.strip() if line.startswith("        ") else line.strip())
        elif line.endswith("::"):
            lines += [line[:-1], "", "```python"]
            in_code = True
        elif not in_code:
            lines.append(line)
        elif line or lines[-1] != "```python":
            lines.append(line.removeprefix("    "))
    return "\n".join([*lines, "```"] if in_code else lines)


def main() -> int:
    """Writes the file, or checks it."""
    if "--check" in sys.argv[1:]:
        if FILE.read_text() == page():
            return 0
        print(f"{FILE} is out of date: run python python/api.py", file=sys.stderr)
        return 1
    FILE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
