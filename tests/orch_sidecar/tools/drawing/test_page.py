"""The page: one file that loads nothing, and its words for a terminal."""

from __future__ import annotations

import sys

import pytest

from orch_sidecar.tools.drawing import page as pages
from orch_sidecar.tools.drawing.chart import Marked, Series, by_size
from tests.orch_sidecar.tools.drawing.html_reader import Page
from tests.orch_sidecar.tools.drawing.test_elements import HOSTILE

SERIES = [Series(HOSTILE, [1, 2], [3, 4]), Series("other", [1, 2], [4, 5])]
CHART = by_size(
    HOSTILE, HOSTILE, HOSTILE, HOSTILE, SERIES, linear=True, marked=[Marked(HOSTILE, 1.5)]
)


def written() -> pages.Page:
    page = pages.Page(HOSTILE)
    page.text(pages.badge(HOSTILE, "good"), HOSTILE)
    page.list([HOSTILE], HOSTILE, "bad")
    page.section(HOSTILE)
    page.charts([CHART, CHART])
    page.charts([CHART])
    page.table((HOSTILE, HOSTILE), [(HOSTILE, HOSTILE)], kinds={HOSTILE: "good"})
    page.facts({HOSTILE: {HOSTILE: HOSTILE}})
    page.list([HOSTILE])
    page.remark(HOSTILE)
    return page


def test_page_shows_every_text_as_it_is_and_loads_nothing() -> None:
    page = Page(written().html)
    assert page.loads_nothing()
    texts = [text for text in page.texts if text.strip() == HOSTILE]
    assert len(texts) == 13 + 3 * 7, "a picture: title and words twice, axes"
    [policy] = [each for each in page.all("meta") if "http-equiv" in each]
    assert policy["content"].startswith("default-src 'none'")


def test_ids_of_pictures_are_their_own() -> None:
    ids = [each["id"] for _, each in Page(written().html).tags if "id" in each]
    assert len(ids) == len(set(ids)) >= 6


def test_page_has_one_heading_and_names_the_cells_of_tables() -> None:
    page = Page(written().html)
    assert len(page.all("h1")) == 1
    assert page.all("html") == [{"lang": "en"}]
    assert all(each["scope"] in ("row", "col") for each in page.all("th"))


def test_terminal_has_texts_and_tables_and_headings_of_what_it_shows() -> None:
    page = pages.Page("title")
    page.section("pictures only")
    page.charts([CHART])
    page.section("figures")
    page.text(pages.badge("valid", "good"), ": a text")
    page.remark("an explanation")
    page.table(("name", "n"), [("a", "10"), ("longer", "9")])
    page.list(["this"], "Why", "warn")
    page.list([])
    assert page.plain.splitlines() == [
        "title", "", "figures", "valid: a text", "name     n", "a       10", "longer   9", "Why:",
        "  this",
    ]  # fmt: skip


def test_names_do_not_control_a_terminal() -> None:
    page = pages.Page("tiny\x1b]0;a\x07")
    page.text("a model\u202e")
    assert page.plain == "tiny\ufffd]0;a\ufffd\na model\ufffd"


def test_empty_list_and_no_charts_leave_nothing() -> None:
    page = pages.Page("a")
    page.list([])
    page.charts([])
    found = Page(page.html)
    assert (found.all("ul"), found.all("div")) == ([], [])


def test_words_need_no_matplotlib_and_pictures_name_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = written()
    assert HOSTILE in page.plain
    with pytest.raises(ValueError, match="pip install matplotlib"):
        _ = page.html
