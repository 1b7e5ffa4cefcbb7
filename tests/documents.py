"""The documentation as tests read it: files, sections, rows of tables, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
REFERENCE: Final = ROOT / "docs" / "reference"

_FENCED: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^(#+) +(.+)$", re.MULTILINE)
_RULE: Final = re.compile(r"\|[-|]+$")
_LINK: Final = re.compile(r"\]\(([^()\s]+)\)")


def documents() -> list[Path]:
    """Every page of documentation in the tree."""
    folders = ("k8s", "orch_sidecar", "profiles", "tests", "vllm_plugin")
    below = (path for folder in folders for path in sorted((ROOT / folder).rglob("README.md")))
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *below]


def page(name: str) -> str:
    """The text of a page of the reference."""
    return text_of(REFERENCE / f"{name}.md")


def text_of(path: Path) -> str:
    """A page without its blocks of code: no heading, link or table row is in one."""
    return _FENCED.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> list[str]:
    """The targets of a page's links to files and headings of this tree."""
    return [link for link in _LINK.findall(text_of(path)) if "://" not in link]


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for _, heading in _HEADING.findall(text_of(path))
    }


def section(path: Path, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    text = text_of(path)
    found = [match for match in _HEADING.finditer(text) if match[2] == heading]
    assert len(found) == 1, f"{path}: {len(found)} headings {heading!r}"
    [start] = found
    following = (
        match.start()
        for match in _HEADING.finditer(text, start.end())
        if len(match[1]) <= len(start[1])
    )
    return text[start.end() : next(following, len(text))]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of each row of each table, without the head."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not (_RULE.match(line) or _RULE.match(following)):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def sentences(path: Path) -> Iterator[str]:
    """The sentences of a page: of its paragraphs, items of lists and cells of tables."""
    for block in _blocks(path):
        yield from re.split(r"(?<=[.:;?!])\)?\s+(?=[A-Z`\[*])", block)


def cells(path: Path) -> Iterator[str]:
    """The cells of a page's tables."""
    for row in rows(text_of(path)):
        yield from row


def words(text: str) -> int:
    """How many words a reader reads: code in backticks, or a link, counts by its words."""
    return len(re.findall(r"\w[^\s|]*", re.sub(r"\]\([^)]*\)", "]", text)))


def _blocks(path: Path) -> Iterator[str]:
    yield from cells(path)
    paragraph: list[str] = []
    for line in [*text_of(path).splitlines(), ""]:
        text = line.strip()
        if not text or text.startswith(("#", "|", "- ", "* ")) or re.match(r"\d+\. ", text):
            yield " ".join(paragraph)
            paragraph = []
        if not text.startswith("|"):
            paragraph.append(text)
    yield " ".join(paragraph)
