"""Derives from rows the conditions under which they were measured, and describes them.

Pure. A condition that a row does not note is `unknown`, which equals no value that is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import NONE, UNKNOWN, Arrivals, Condition
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, Row
from orch_sidecar.tools.facts.tables.table import row_fields

# A chat template or a few repeated tokens at the start of random prompts are found in any prefix
# cache; below this share they change no figure.
_FEW_HITS: Final = 0.01

# Mean lengths of one workload differ by a few tokens from run to run, and by the tokens of a chat
# template. Within a tenth the work differs by a tenth at most.
_BAND_SHARE: Final = 0.1
_BAND_TOKENS: Final = 4

CONDITIONS: Final = (
    *map(Condition, ("model_id", "engine", "precision", "gpu")),
    Condition("gpu_count", spelled="accelerators: {}"),
    Condition("input_tokens", spelled="{} tokens in"),
    Condition("output_tokens", spelled="{} tokens out"),
    Condition("traffic", none="no trace", usual=NONE),
    *(each for each in names.SETTINGS if not each.beside),
    Condition(names.PREFIX_HIT_RATIO, spelled="prefix cache hits {}", none="no prefix cache hits",
              usual=NONE),
)  # fmt: skip
Conditions = Mapping[str, str]  # by their names


def bands(values: Iterable[int]) -> dict[int, str]:
    """Returns the band of each length: `512`, or `498 to 520`. One begins at the smallest length
    that is in none before."""
    found: dict[int, list[int]] = {}
    band: list[int] = []
    for value in sorted(set(values)):
        if not band or value > band[0] + max(_BAND_TOKENS, _BAND_SHARE * band[0]):
            band = []
        band.append(value)
        found[value] = band
    return {
        value: str(value) if len(band) == 1 else f"{band[0]} to {band[-1]}"
        for value, band in found.items()
    }


def conditions_of(rows: Sequence[Row]) -> Iterator[Conditions]:
    """Yields the conditions of each of valid rows, with the bands of their lengths."""
    inputs = bands(row.input_tokens for row in rows)
    outputs = bands(row.output_tokens for row in rows)
    for row in rows:
        notes = row.notes
        # Noted above 1; a row without any conditions knows nothing of ranks, either.
        alone = "1" if names.ALWAYS_REPORTED[-1] in notes else UNKNOWN
        known = {
            **notes,
            **dict(zip(COLUMNS, row_fields(row), strict=True)),
            "input_tokens": inputs[row.input_tokens],
            "output_tokens": outputs[row.output_tokens],
            "traffic": _traffic(notes),
            names.DATA_PARALLEL: notes.get(names.DATA_PARALLEL, alone),
            names.PREFIX_HIT_RATIO: _prefix_hits(notes),
        }
        yield {each.name: known.get(each.name, UNKNOWN) for each in CONDITIONS}


def scheduling_of(notes: names.RowNotes) -> str:
    """Describes how the scheduler is set up; what is not noted is unknown."""
    setup = (each for each in names.SETTINGS if each.beside)
    return ", ".join(each.spelled.format(notes.get(each.name, UNKNOWN)) for each in setup)


def remarks_of(notes: names.RowNotes, verified: bool) -> tuple[str, ...]:
    """Returns what limits the trust in a row, or strengthens it."""
    given = ", ".join(sorted(notes.given))
    noted = [text.format(given) for name, text in _LIMITS.items() if name in notes]
    return ("evidence verified", *noted) if verified else tuple(noted)


# What a note says of the trust in a figure.
_LIMITS: Final = {
    names.PRELIMINARY: "preliminary",
    names.CUT: "requests cut off",
    names.CLIENT_BOTTLENECK: "the client may be the bottleneck",
    names.GIVEN: "{} given by the user",
    names.STATES: "states of the engine unsigned",
}
# Why a row is in no set, and has no price.
UNCONFIRMED: Final = f"{Label.TO_BE_CONFIRMED}: it is unknown how the engine was batching"


def _traffic(notes: names.RowNotes) -> str:
    """Returns the trace by its hash, and what was replayed of it."""
    if notes.arrivals != Arrivals.TRACE or notes["arrivals"] == Arrivals.TRACE:
        return NONE
    return " ".join(filter(None, [notes["arrivals"], *map(notes.pair, names.REPLAYED)]))


def _prefix_hits(notes: names.RowNotes) -> str:
    """Returns the band of the share of prompt tokens that came from the prefix cache.

    Bands are a tenth wide, and centred on tenths: prompts are designed to share a half or nine
    tenths, and the measured ratios scatter around that. Within a band the prefill work, which is
    what hits save, differs by at most a tenth of that of all prompts.
    """
    ratio = notes.number(names.PREFIX_HIT_RATIO)
    if ratio is None:
        return NONE if notes.get("prefix_caching") == "off" else UNKNOWN
    if ratio < _FEW_HITS:
        return NONE
    tenth = int(ratio * 10 + 0.5)
    return f"about {tenth * 10} %" if tenth else "below 5 %"


def headings(sets: Sequence[Conditions]) -> tuple[str, list[str]]:
    """Returns what sets share, but for what is usual, and what distinguishes each: a line each."""
    shared = [each for each in CONDITIONS if len({values[each.name] for values in sets}) == 1]
    varied = [each for each in CONDITIONS if each not in shared]
    title = _line(sets[0], shared) if sets else "Nothing to compare"
    return title, [_line(each, varied, always=True) for each in sets]


def _line(values: Conditions, named: Sequence[Condition], *, always: bool = False) -> str:
    """Formats conditions in one line. `always`: also usual values."""
    settings = [each for each in named if each.usual and each.name != "traffic"]
    known = len(settings) < 2 or any(values[each.name] != UNKNOWN for each in settings)
    texts = {}
    for each in named:
        value = values[each.name]
        if (known or each not in settings) and (always or not re.fullmatch(each.usual, value)):
            texts[each.name] = each.none if value == NONE else each.spelled.format(value)
    if "gpu" in texts and texts.pop("gpu_count", "") and values["gpu_count"] != "0":
        texts["gpu"] = f"{values['gpu_count']} x {texts['gpu']}"
    return ", ".join(filter(None, [*texts.values(), "" if known else "engine settings unknown"]))
