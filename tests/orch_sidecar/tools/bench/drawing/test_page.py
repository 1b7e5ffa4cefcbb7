"""The page: one file that loads nothing."""

from __future__ import annotations

from orch_sidecar.tools.bench.drawing import page as pages
from orch_sidecar.tools.bench.drawing.page import Card
from tests.orch_sidecar.tools.bench.drawing.html_reader import Page
from tests.orch_sidecar.tools.bench.drawing.test_chart import DOTS, chart
from tests.orch_sidecar.tools.bench.drawing.test_elements import HOSTILE


def written() -> Page:
    page = pages.Page(HOSTILE)
    page.text(pages.badge(HOSTILE, "good"), HOSTILE)
    page.note("bad", HOSTILE, [HOSTILE])
    page.cards([Card(HOSTILE, HOSTILE, HOSTILE, HOSTILE)])
    page.section(HOSTILE)
    page.charts([chart([DOTS]), chart([DOTS])])
    page.table((HOSTILE, HOSTILE), [(HOSTILE, HOSTILE)])
    page.facts({HOSTILE: [(HOSTILE, HOSTILE)]})
    page.list([HOSTILE])
    return Page(page.html)


def test_page_shows_every_text_as_it_is_and_loads_nothing() -> None:
    page = written()
    assert page.loads_nothing()
    assert page.text.count(HOSTILE) == 19
    [policy] = [each for each in page.all("meta") if "http-equiv" in each]
    assert policy["content"].startswith("default-src 'none'")


def test_figures_have_ids_of_their_own() -> None:
    ids = [each["id"] for _, each in written().tags if "id" in each]
    assert len(ids) == 4
    assert len(set(ids)) == 4


def test_page_has_one_heading_and_names_the_cells_of_tables() -> None:
    page = written()
    assert len(page.all("h1")) == 1
    assert page.all("html") == [{"lang": "en"}]
    assert all(each["scope"] in ("row", "col") for each in page.all("th"))


def test_empty_list_leaves_nothing() -> None:
    page = pages.Page("a")
    page.list([])
    assert Page(page.html).all("ul") == []
