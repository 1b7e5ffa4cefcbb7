"""Plots."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orch_sidecar.tools.facts.comparison.plot import PlotUnavailable, draw, require
from orch_sidecar.tools.facts.comparison.series import Kind, Panel, Series, Style

MEASURED = Series("measured", Kind.MEASURED, (1, 2, 4, 8), (90, 170, 320, 560))
FITTED = Series("fitted", Kind.CURVE, (1, 4, 8), (91, 318, 562), Style(line=":", color=1))


def panel(*series: Series, y_label: str = "generated tokens/s") -> Panel:
    return Panel("throughput", "batch b (sequences per step)", y_label, series)


def drawn(path: Path, *panels: Panel, title: str = "a title") -> str:
    """Draws an SVG, and returns its text: matplotlib adds each text in a comment."""
    draw(path, title, panels)
    return path.read_text(encoding="utf-8")


def test_png_has_a_readable_size(tmp_path: Path) -> None:
    path = tmp_path / "p.PNG"
    draw(path, "a title", [panel(MEASURED, FITTED), panel(MEASURED)])
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    wide, high = int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
    assert (wide, high) > (1700, 600)
    assert wide > 2 * high


def test_picture_names_axes_with_units_series_and_title(tmp_path: Path) -> None:
    svg = drawn(tmp_path / "p.svg", panel(MEASURED, FITTED), title="Llama on H100")
    for words in ("Llama on H100", "throughput", "generated tokens/s", "measured", "fitted"):
        assert f"<!-- {words} -->" in svg
    assert "<!-- batch b (sequences per step) -->" in svg


def test_batches_are_the_ticks_as_plain_numbers(tmp_path: Path) -> None:
    svg = drawn(tmp_path / "p.svg", panel(MEASURED))
    for batch in (1, 2, 4, 8):
        assert f"<!-- {batch} -->" in svg
    assert "10^" not in svg


def ticks(svg: str, axis: str) -> list[tuple[str, float]]:
    """Returns the labels of the ticks of an axis, and their positions, in pixels."""
    found = re.findall(
        rf'<g id="{axis}tick_\d+">.*?<use [^>]*x="([\d.]+)" y="([\d.]+)".*?<!-- (.*?) -->',
        svg,
        re.DOTALL,
    )
    return [(label, float(x if axis == "x" else y)) for x, y, label in found]


def apart_by(svg: str, axis: str, *labels: str) -> list[float]:
    """Returns the distance of each of these ticks from the previous one."""
    places = dict(ticks(svg, axis))
    pairs = itertools.pairwise(labels)
    return [abs(places[after] - places[before]) for before, after in pairs]


def test_batches_that_double_are_equally_far_apart(tmp_path: Path) -> None:
    far = drawn(tmp_path / "p.svg", panel(MEASURED))
    first, second, third = apart_by(far, "x", "1", "2", "4", "8")
    assert first == pytest.approx(second) == pytest.approx(third)
    near = Series("near", Kind.MEASURED, (1, 2, 3), (90, 170, 250))
    first, second = apart_by(drawn(tmp_path / "q.svg", panel(near)), "x", "1", "2", "3")
    assert first == pytest.approx(second)


def test_values_far_apart_get_a_logarithmic_axis_and_others_one_from_0(tmp_path: Path) -> None:
    far = Series("far", Kind.MEASURED, (1, 1024), (10, 20000))
    svg = drawn(tmp_path / "p.svg", panel(far))
    first, second = apart_by(svg, "y", "100", "1,000", "10,000")
    assert first == pytest.approx(second)
    near = Series("near", Kind.MEASURED, (1, 1024), (10000, 20000))
    svg = drawn(tmp_path / "q.svg", panel(near))
    assert ticks(svg, "y")[0][0] == "0"
    first, second = apart_by(svg, "y", "0", "10,000", "20,000")
    assert first == pytest.approx(second)


def test_same_figures_make_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("svg", "png"):
        first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
        draw(first, "a title", [panel(MEASURED, FITTED)])
        draw(second, "a title", [panel(MEASURED, FITTED)])
        assert first.read_bytes() == second.read_bytes()


def test_names_are_not_parsed_as_formulas(tmp_path: Path) -> None:
    """As a formula, this name would be an error."""
    odd = r"$\no_such$"
    series = Series(odd, Kind.MEASURED, (1,), (1,))
    svg = drawn(tmp_path / "p.svg", Panel(odd, odd, odd, (series,)), title=odd)
    assert svg.count(f"<!-- {odd} -->") == 5


@pytest.mark.parametrize("name", ["p.gif", "p", "p.pdf"])
def test_other_suffix_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must be \.png or \.svg"):
        draw(tmp_path / name, "a title", [panel(MEASURED)])


def test_plot_without_a_series_is_rejected(tmp_path: Path) -> None:
    for panels in ([], [panel()]):
        with pytest.raises(ValueError, match="at least one panel"):
            draw(tmp_path / "p.svg", "a title", panels)


@pytest.mark.parametrize(("xs", "ys"), [((), ()), ((1.0,), ())])
def test_inconsistent_points_are_rejected(xs: tuple[float, ...], ys: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"^s: \d "):
        Series("s", Kind.MEASURED, xs, ys)


def test_batches_that_are_almost_equal_share_a_tick(tmp_path: Path) -> None:
    """1.98, 3.9, 7.8 and 7.9 would be written over each other."""
    near = Series("near", Kind.MEASURED, (1, 1.98, 3.9, 7.8, 7.9), (90, 170, 320, 560, 570))
    assert [text for text, _ in ticks(drawn(tmp_path / "p.svg", panel(near)), "x")][:4] == [
        *("1", "2", "4", "8"),
    ]


def test_panel_of_one_scale_draws_what_is_proportional_as_a_straight_line(tmp_path: Path) -> None:
    line = Series("linear", Kind.CURVE, (1, 16), (1, 16))
    straight = Panel("speed-up", "growth", "speed-up", (line,), same_scale=True)
    svg = drawn(tmp_path / "p.svg", straight)
    first, second = apart_by(svg, "y", "1", "2", "4")
    assert first == pytest.approx(second)


def test_without_matplotlib_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotUnavailable, match="pip install matplotlib"):
        require(tmp_path / "p.png")


def test_matplotlib_is_not_loaded_before_something_is_drawn() -> None:
    code = "import orch_sidecar.tools.facts.cli, sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
