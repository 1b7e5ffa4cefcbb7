"""Makes lines of the live document: what `orch top` shows, and what `--once` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from orch_sidecar.tools.bench.load.call import shown
from orch_sidecar.tools.top.live import (
    Choice,
    Document,
    InvalidDocument,
    Live,
    in_flight,
    since_at,
)

_BARS: Final = "▁▂▃▄▅▆▇█"
_MOST: Final = 200  # characters of a name

# The letters of slots, by their owners, with their colors: legible without colors, too.
SLOTS: Final = {
    "interactive": ("i", "green"),
    "bulk": ("b", "blue"),
    "idle": ("-", "cyan"),
    "foreign": ("f", "magenta"),
    "closing": ("c", "yellow"),
    "free": (".", "bright_black"),
}
_WIDEST_ROW: Final = 64


def name(value: object) -> str:
    """Returns a text of the document as one line: a terminal obeys control characters."""
    return "" if value is None else shown(str(value), _MOST)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Cuts or fills a text to a width in cells; what was cut ends in `~`."""
    if cell_len(text) > width:
        return set_cell_size(text, max(0, width - 1)) + "~"[:width]
    filling = " " * (width - cell_len(text))
    return filling + text if right else text + filling


def sparkline(values: Sequence[float], most: float) -> str:
    """Returns a bar for each value, the highest for `most`."""
    if most <= 0:
        return _BARS[0] * len(values)
    top = len(_BARS) - 1
    return "".join(_BARS[max(0, min(top, round(top * value / most)))] for value in values)


def slots_row(slots: Mapping[str, int], width: int = _WIDEST_ROW) -> Text:
    """Returns a letter for each slot; where there are many, one for several. Owners are rounded
    up, so that the row may be longer than `width` by a letter for each but one."""
    per_letter = -(-max(1, slots["total"]) // max(1, min(width, _WIDEST_ROW)))
    row = Text()
    for kind, (letter, color) in SLOTS.items():
        row.append(letter * -(-slots[kind] // per_letter), color)
    return row


def number(value: float | None) -> str:
    """Formats a figure in at most five characters."""
    if value is None:
        return "-"
    if abs(value) >= 99_999.5:
        return f"{value / 1000:.0f}k" if abs(value) < 9_999_500 else f"{value / 1e6:.0f}M"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    """Formats a time of a request, in ms or s."""
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.0f} s"


def duration(seconds: float) -> str:
    """Formats an age: `1.2 s`, `75 s`, `12 min`, `3 h`, `4 d`."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def pair(values: Any) -> str:
    """Formats a median and a 95th percentile in milliseconds."""
    return "-" if not values else "/".join(number(value) for value in values)


_STATES: Final = {"ready": "green", "starting": "yellow", "paused": "yellow", "asleep": "yellow"}
_LABEL: Final = 8  # the width of what a line is about
_LEAST_BARS: Final = 8  # of the curve, on a narrow terminal
_BATCHES_TEXT: Final = 26
_MOST_POOLS: Final = 6
_KEYS: Final = "q quit  arrows choose  s sort:"
_OPERATOR_KEYS: Final = "  c cancel  d drain  r resume"


@dataclass(frozen=True, slots=True)
class Look:
    """The terminal. `height`: None without a limit."""

    width: int
    height: int | None = None


@contextmanager
def _of_this_release() -> Iterator[None]:
    """Raises InvalidDocument for a document without what the view shows."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidDocument(
            f"the sidecar's document cannot be shown ({error!r}): sidecar and `orch top` must be "
            "of the same release"
        ) from error


@_of_this_release()
def screen(live: Live, choice: Choice, look: Look, note: str, away: str) -> list[Text]:
    """Returns the lines of a screen, exactly `height`. `note`: of the last order, or a question.

    `away`: why the sidecar does not answer, empty while it does. Raises InvalidDocument.
    """
    assert look.height is not None
    pool = choice.pool_of(live)
    lines = [_title(live, look, away), *_pool_rows(choice.pools_of(live), pool, look)]
    foot = [_foot(live, choice, note)]
    lines += _batch_rows(live)
    if pool is not None:
        lines += [Text(), *_details(pool, live, look)]
        room = look.height - len(lines) - len(foot)
        lines += _requests(live, pool, choice, look, room)
    lines = lines[: look.height - len(foot)]
    lines += [Text()] * (look.height - len(foot) - len(lines))
    return [_cut(line, look) for line in [*lines, *foot]]


@_of_this_release()
def snapshot(live: Live, look: Look) -> list[Text]:
    """Returns all pools with their requests, one after the other. Raises InvalidDocument."""
    lines = [_title(live, look, ""), *_pool_rows(live.pools, None, look)]
    lines += _batch_rows(live)
    for pool in live.pools:
        lines += [Text(), *_details(pool, live, look)]
        lines += _requests(live, pool, Choice(pool["name"]), look, None)
    return [_cut(line, look) for line in lines]


def _cut(line: Text, look: Look) -> Text:
    line.no_wrap, line.overflow = True, "crop"
    line.truncate(look.width)
    line.rstrip()
    return line


def _title(live: Live, look: Look, away: str) -> Text:
    if away:
        return Text(f"AWAY: {name(away)}; below, what it was. Trying again.", "bold red")
    sidecar = live.document.get("sidecar", {})
    clock = datetime.fromtimestamp(live.at / 1000).astimezone().strftime("%H:%M:%S")
    started = duration((live.at - sidecar["started_at"]) / 1000)
    state = name(sidecar["state"])
    line = Text("orch top  ", "bold")
    line.append(state, _color(state))
    line.append(f"  sidecar {name(sidecar['version'])}, up {started}")
    line.append(" " * max(1, look.width - line.cell_len - len(clock)) + clock)
    return line


def _color(state: str) -> str:
    return _STATES.get(state, "red")


_COLUMNS: Final = (
    ("POOL", 14, False), ("TYPE", 14, False), ("STATE", 9, False), ("SLOTS", 7, True),
    ("QUEUE", 6, True), ("TOK/S", 6, True), ("TTFT95", 7, True), ("TPOT95", 7, True),
)  # fmt: skip


def _pool_rows(pools: list[Document], chosen: Document | None, look: Look) -> Iterator[Text]:
    """Yields the head and a row for each pool; where there are many, those around the chosen."""
    heads = (fitted(title, width, right=right) for title, width, right in _COLUMNS)
    yield Text(" " + " ".join(heads), "bold")
    first = 0
    if chosen is not None and look.height is not None:
        first = max(0, min(pools.index(chosen) - _MOST_POOLS // 2, len(pools) - _MOST_POOLS))
        pools = pools[first : first + _MOST_POOLS]
    for pool in pools:
        yield _pool_row(pool, is_chosen=pool is chosen)


def _pool_row(pool: Document, *, is_chosen: bool) -> Text:
    slots, state = pool["slots"], name(pool["state"])
    if pool["drain"]:
        state = "draining"
    latency = pool["latency"].get("interactive") or pool["latency"].get("bulk") or {}
    cells = [
        (name(pool["name"]), ""),
        (name(pool["measurement_type"]), ""),
        (state, _color(state)),
        (f"{slots['total'] - slots['free']}/{slots['total']}", ""),
        (str(sum(pool["queued"].values())), ""),
        (number(pool["rates"]["tokens_per_s"]), ""),
        *(_against(latency, kind) for kind in ("ttft", "tpot")),
    ]
    row = Text(">" if is_chosen else " ", "bold")
    for at, ((text, color), (_, width, right)) in enumerate(zip(cells, _COLUMNS, strict=True)):
        row.append(" " if at else "").append(fitted(text, width, right=right), color)
    return row


def _against(latency: Document, kind: str) -> tuple[str, str]:
    """Returns the 95th percentile of a time, red where it is beyond the SLO."""
    values, bound = latency.get(f"{kind}_ms"), latency.get(f"{kind}_slo_ms")
    if not values:
        return "-", ""
    return number(values[1]), "red" if bound is not None and values[1] > bound else ""


def _batch_rows(live: Live) -> Iterator[Text]:
    """Yields a line for each batch that has not ended, of at most so many as pools."""
    for row in live.document.get("batches", [])[:_MOST_POOLS]:
        line = Text(f" batch {fitted(name(row['batch'])[-12:], 12)} {name(row['status'])}")
        line.append(f" {row['completed'] + row['failed']}/{row['total']}")
        line.append(f", {row['failed']} failed" if row["failed"] else "", "red")
        if row["rows_per_s"] is not None:
            left = duration((row["ends_at"] - live.at) / 1000)
            line.append(f", {number(row['rows_per_s'])} rows/s, ends in {left}")
        yield line


def _details(pool: Document, live: Live, look: Look) -> Iterator[Text]:
    """Yields what the chosen pool is, does, and waits for."""
    parts = [pool["name"], ", ".join(map(name, pool["models"])), pool["engine"], pool["gpu"]]
    yield Text(" ".join(filter(None, map(name, parts))), "bold")
    if pool["message"]:
        since, state = pool["since_at"], name(pool["state"])
        lasts = "" if since is None else f" for {duration((live.at - since) / 1000)}"
        yield from _wrapped("state", f"{state}{lasts}: {name(pool['message'])}", look, "red")
    if pool["advice"]:
        yield from _wrapped("to do", name(pool["advice"]), look)
    slots = pool["slots"]
    counts = "  ".join(f"{slots[kind]} {kind}" for kind in SLOTS if slots[kind] or kind == "free")
    width = look.width - _LABEL - len(counts) - 2 - len(SLOTS)
    yield _line("slots", slots_row(slots, width), Text(f"  {counts}"))
    if pool["batches"]:
        yield _batches(pool, look)
    curve = pool["curve"]
    if curve["points"]:
        yield _curve(curve, look)
    yield _speed(pool)
    for service_class, latency in pool["latency"].items():
        if latency["ttft_ms"] or latency["tpot_ms"]:
            yield _latency(service_class, latency)
    if pool["waits"]:
        yield from _wrapped("waits", name(pool["waits"]["text"]), look, "yellow")


def _line(about: str, *parts: Text | str) -> Text:
    line = Text().append(f"{about:<{_LABEL}}", "bright_black")
    for part in parts:
        line.append_text(part) if isinstance(part, Text) else line.append(part)
    return line


def _wrapped(about: str, text: str, look: Look, color: str = "") -> Iterator[Text]:
    for number_, line in enumerate(textwrap.wrap(text, max(20, look.width - _LABEL - 1))[:3]):
        yield _line("" if number_ else about, Text(line, color))


def _batches(pool: Document, look: Look) -> Text:
    batches = pool["batches"][-max(8, look.width - _LABEL - _BATCHES_TEXT) :]
    bars = sparkline(batches, max(pool["slots"]["total"], *batches))
    mean = sum(batches) / len(batches)
    return _line("batch", Text(bars, "cyan"), f"  last {batches[-1]}, mean {mean:.1f}")


def _curve(curve: Document, look: Look) -> Text:
    points = curve["points"]
    first, last = points[0], points[-1]
    text = f"  {number(first[1])} to {number(last[1])} ms at batch {first[0]:g} to {last[0]:g}"
    fit = curve["fit"]
    if fit is not None and fit["good"]:
        text += f"; {number(fit['t0_ms'])} + {fit['c_ms']:.3g} b^{fit['alpha']:.2g}"
    every = -(-len(points) // max(_LEAST_BARS, look.width - _LABEL - len(text) - 1))
    times = [ms for _, ms, _ in [*points[:-1:every], last]]
    bars = sparkline(times, max(times))
    return _line("step", Text(bars, "cyan"), text)


def _speed(pool: Document) -> Text:
    rates, kv = pool["rates"], pool["kv"]
    busy = "-" if rates["busy"] is None else f"{100 * rates['busy']:.0f} %"
    usage = "-" if kv["usage"] is None else f"{100 * kv['usage']:.0f} %"
    line = _line("engine", f"{number(rates['tokens_per_s'])} tokens/s, busy {busy}, KV {usage}, ")
    line.append(f"{kv['preemptions']} preemptions, ")
    violations = pool["violations"]
    return line.append(f"{violations} violations", "bold red" if violations else "")


def _latency(service_class: str, latency: Document) -> Text:
    line = _line("p50/p95", f"{name(service_class)}:")
    for kind, title in (("ttft", "TTFT"), ("tpot", "TPOT")):
        bound = latency[f"{kind}_slo_ms"]
        _, color = _against(latency, kind)
        line.append(f"  {title} ").append(pair(latency[f"{kind}_ms"]), color)
        line.append("" if bound is None else f" (SLO {number(bound)})")
    return line.append(" ms")


def _requests(
    live: Live, pool: Document, choice: Choice, look: Look, room: int | None
) -> list[Text]:
    """Returns the requests in flight, then those that ended; as many as there is room for."""
    rows = in_flight(pool, choice.order)
    lines = [Text()]
    titles = f"{'STATE':<10} {'CLASS':<11} {'KEY':<12} {'SLOTS':>5} {'SINCE':>7}"
    lines.append(Text(f" {'REQUEST':<12} {titles}", "bold"))
    if room is not None:
        most = max(1, room - len(lines))
        ids = [row["id"] for row in rows]
        at = ids.index(choice.request) if choice.request in ids else 0
        first = max(0, min(at - most // 2, len(rows) - most))
        rows = rows[first : first + most]
    lines += [_request(row, live, is_chosen=row["id"] == choice.request) for row in rows]
    ended = [row for row in live.document.get("requests", []) if row["pool"] == pool["name"]]
    left = len(ended) if room is None else min(len(ended), room - len(lines) - 1)
    if left > 0:
        titles = f"{'WAIT':>8} {'FIRST':>8} {'ALL':>8} {'TOKENS':>6} {'BATCH':>5}"
        lines.append(Text(f" {'ENDED':<12} {'OUTCOME':<22} {titles}", "bold"))
        lines += [_ended(row) for row in reversed(ended[-left:])]
    return lines


def _request(row: Document, live: Live, *, is_chosen: bool) -> Text:
    more, waits = "", "queued_at" in row
    if waits:
        state, starts = f"queued {row['position']}", row["starts_at"]
        more = "" if starts is None else f"starts in {duration((starts - live.at) / 1000)}"
    else:
        state = "starting" if row.get("phase") == "prompt" else "running"
    line = Text(">" if is_chosen else " ", "bold")
    line.append(f"{fitted(name(row['id']), 12)} ", "reverse" if is_chosen else "")
    line.append(fitted(state, 10), "yellow" if waits else "green")
    line.append(f" {fitted(name(row['class']), 11)} {fitted(name(row['key']) or '-', 12)} ")
    since = duration((live.at - since_at(row)) / 1000)
    return line.append(f"{row['cost']:>5} {since:>7}  {more}")


def _ended(row: Document) -> Text:
    outcome = name(row["outcome"])
    if row["text"]:
        outcome = f"{row['status']} {name(row['text'])}" if row["status"] else name(row["text"])
    line = Text(f" {fitted(name(row['id']), 12)} ")
    line.append(fitted(outcome, 22), "" if row["outcome"] == "ok" else "red")
    for key in ("wait_ms", "first_byte_ms", "total_ms"):
        line.append(f" {milliseconds(row[key]):>8}")
    return line.append(f" {number(row['tokens']):>6} {number(row['batch']):>5}")


def _foot(live: Live, choice: Choice, note: str) -> Text:
    if note:
        return Text(name(note), "bold yellow")
    pools = f"  p pools:{choice.pool_order}" if len(live.pools) > 1 else ""
    more = _OPERATOR_KEYS if live.document.get("operator") else ""
    return Text(f"{_KEYS}{choice.order}{pools}{more}", "bright_black")
