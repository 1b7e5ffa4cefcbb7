"""`orch facts compare` and `cost`: facts side by side, and what a million tokens cost, by label."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Final

from orch_sidecar.tools.arguments import Unavailable, positive, share
from orch_sidecar.tools.drawing.picture import drawn, require
from orch_sidecar.tools.facts.commands.tables import beside, read_trusted, verified_rows
from orch_sidecar.tools.facts.commands.terminal import Commands, add_command, sound_rows
from orch_sidecar.tools.facts.comparison import cost
from orch_sidecar.tools.facts.comparison.compare import as_page, charts_of, compare
from orch_sidecar.tools.facts.tables.files import write
from orch_sidecar.tools.terminal import print_json

_COMPARE: Final = """Compares the throughput of facts by their batch.

A set has rows of one model, engine, accelerator, settings of the engine and kind of work. In it the
ways of batching stand side by side, and what is trusted otherwise, such as rows with verified
evidence (by the keys of --trusted), has points of its own. Nothing is averaged over any of these.

A batch is the mean number of sequences per decode step. Speed-up and efficiency are relative to the
smallest batch of the same way. Rows that are to_be_confirmed are excluded. The files must be
without faults. docs/reference/facts.md has each rule."""

_COMPARE_EPILOG: Final = """examples:
  orch facts compare tps_model_gpu.csv
  orch facts compare facts/*.csv --plot batches.svg --report batches.html
  orch facts compare tps_model_gpu.csv --trusted trusted.yaml
  orch facts compare tps_model_gpu.csv --json"""


_COST: Final = """Prices rows: what a million tokens cost, by label.

You pay the whole hour (reserved); its tokens are those of the share that is used, for rows that are
batched_online those of requests within the SLO. Prices are for one accelerator with its share of
the host, or for the machine if a row has no accelerator. Separate prices of input and output split
the hour by the engine's time, which the evidence beside the table has. No figure mixes labels.
docs/how-to/cost.md has each rule."""

_COST_EPILOG: Final = """examples:
  orch facts cost tps_model_gpu.csv --per-hour 2.50
  orch facts cost home.csv --per-hour 0.12 --electricity 0.30/kWh --watts 350 --idle-watts 60 \\
      --used 0.1
  orch facts cost tps_model_gpu.csv --per-hour 2.50 --json"""


def add_commands(commands: Commands) -> None:
    """Adds `compare` and `cost`."""
    files = "tables of facts"
    add = add_command(
        commands, "compare", _compare, _COMPARE, _COMPARE_EPILOG, files=files
    ).add_argument
    plot_help = "plot tokens/s, TTFT and speed-up to this file (.png or .svg)"
    add("--plot", type=Path, metavar="FILE", help=plot_help)
    add("--report", type=Path, metavar="HTML", help="write a page with the tables and pictures")
    add("--json", action="store_true", help="print the comparison as JSON")
    add("--trusted", type=Path, metavar="KEYS", help="the keys by which evidence is verified")
    add = add_command(commands, "cost", _cost, _COST, _COST_EPILOG, files=files).add_argument
    per_hour = "price of an accelerator's hour: rent, or purchase over the hours of its life"
    add("--per-hour", type=positive, required=True, metavar="PRICE", help=per_hour)
    kwh_help = "if the hour does not include it, such as 0.30/kWh"
    add("--electricity", type=_per_kwh, default=0.0, metavar="PRICE/kWh", help=kwh_help)
    add("--watts", type=positive, help="measured draw of an accelerator that works, host included")
    add("--idle-watts", type=positive, help="the same while it does not work")
    used_help = "share of the reserved hours in which it works as in the row (1)"
    add("--used", type=share, default=1.0, metavar="SHARE", help=used_help)
    add("--json", action="store_true", help="print the costs as JSON")


def _compare(options: argparse.Namespace) -> int:
    if options.plot is not None or options.report is not None:
        require(options.plot)
    rows = sound_rows(options.files, "files with faults are not compared: fix them")
    trusted = read_trusted(options.trusted)
    found = compare(rows, verified_rows(rows, beside(*options.files), trusted))
    page = as_page(found)
    if options.json:
        print_json(asdict(found))
    else:
        print(page.plain)
    if not found.sets:
        raise Unavailable("the files have no row that can be compared")
    if options.plot is not None:
        picture = drawn(options.plot.suffix, found.headings[0], charts_of(found))
        write(options.plot, picture)
    if options.report is not None:
        write(options.report, page.html)
    return 0


def _per_kwh(text: str) -> float:
    price, unit, _ = text.lower().partition("/kwh")
    if not unit:
        raise argparse.ArgumentTypeError(f"{text!r} must be a price for a kWh, such as 0.30/kWh")
    return positive(price)


def _cost(options: argparse.Namespace) -> int:
    given = (options.per_hour, options.used, options.electricity, options.watts, options.idle_watts)
    try:
        prices = cost.Prices(*given)
    except ValueError as error:
        options.usage.error(str(error))
    rows = sound_rows(options.files, "files with faults are not priced: fix them")
    found = cost.priced(rows, prices, beside(*options.files))
    if options.json:
        print_json(asdict(found))
    else:
        print(cost.as_page(found).plain)
    if not found.costs:
        raise Unavailable("the files have no row that can be priced")
    return 0
