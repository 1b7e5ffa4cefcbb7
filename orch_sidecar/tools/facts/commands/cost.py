"""`orch facts cost`: what a million tokens cost, by label."""

from __future__ import annotations

import argparse
from typing import Final

from orch_sidecar.tools.arguments import positive, share
from orch_sidecar.tools.facts.commands.terminal import (
    Commands,
    Refused,
    add_command,
    print_json,
    sound_rows,
)
from orch_sidecar.tools.facts.commands.verify import beside
from orch_sidecar.tools.facts.comparison.cost import (
    Prices,
    as_document,
    as_page,
    priced,
    total_of,
)
from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.row import Label

_KWH: Final = "/kwh"

_DESCRIPTION: Final = """Prices rows: what a million tokens cost, by label.

You pay the whole hour (reserved); its tokens are those of the share that is used. Prices are for
one accelerator with its share of the host, or for the machine if a row has no accelerator.

  single_stream   one user's own machine, or one reserved for that user: all its tokens
  batched_online  a shared machine: the tokens of requests within the SLO. A row without the SLO and
                  the share of requests within it is incomplete and has no price
  offline         a backlog: all its tokens

With inputs included, an output token costs the hour over the hour's output tokens. Separate prices
split the hour by the engine's time: what prompts added to its steps, by the counters in the
evidence beside the table, is the price of the input tokens, and the rest that of the output tokens.
For a single stream without evidence the time to the first token counts as input. Other rows
without evidence have no separate prices. No figure mixes labels, and power is never guessed."""

_EPILOG: Final = """examples:
  orch facts cost tps_model_gpu.csv --per-hour 2.50
  orch facts cost home.csv --per-hour 0.12 --electricity 0.30/kWh --watts 350 --idle-watts 60 \\
      --used 0.1
  orch facts cost tps_model_gpu.csv --per-hour 2.50 --label offline --total --json"""


def add_commands(commands: Commands) -> None:
    """Adds `cost`."""
    summary = "price rows: what a million tokens cost, by label"
    add = add_command(
        commands, "cost", _cost, summary, _DESCRIPTION, _EPILOG, files="tables of facts"
    ).add_argument
    per_hour = "price of an accelerator's hour: rent, or purchase over the hours of its life"
    add("--per-hour", type=positive, required=True, metavar="PRICE", help=per_hour)
    kwh_help = "if the hour does not include it, such as 0.30/kWh"
    add("--electricity", type=_per_kwh, default=0.0, metavar="PRICE/kWh", help=kwh_help)
    add("--watts", type=positive, help="measured draw of an accelerator that works, host included")
    add("--idle-watts", type=positive, help="the same while it does not work")
    used_help = "share of the reserved hours in which it works as in the row (1)"
    add("--used", type=_used, default=1.0, metavar="SHARE", help=used_help)
    add("--label", choices=[each for each in Label if each is not Label.TO_BE_CONFIRMED],
        type=Label, help="price rows with this label only")  # fmt: skip
    add("--total", action="store_true", help="price all rows as one figure; refuses several labels")
    add("--json", action="store_true", help="print the costs as JSON")


def _per_kwh(text: str) -> float:
    if not text.lower().endswith(_KWH):
        raise argparse.ArgumentTypeError(f"{text!r} must be a price for a kWh, such as 0.30/kWh")
    return positive(text[: -len(_KWH)])


def _used(text: str) -> float:
    if not (value := share(text)):
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0: unused hours have no tokens")
    return value


def _cost(options: argparse.Namespace) -> int:
    given = (options.per_hour, options.electricity, options.watts, options.idle_watts, options.used)
    try:
        prices = Prices(*given)
    except ValueError as error:
        options.usage.error(str(error))
    tables = [read(path) for path in options.files]
    rows = sound_rows(tables, "files with faults are not priced: fix them")
    if options.label is not None:
        rows = [each for each in rows if each.row.measurement_type is options.label]
    costs, without = priced(rows, prices, beside(*options.files))
    try:
        total = total_of(costs, prices.used) if options.total else None
    except ValueError as error:
        raise Refused(f"orch facts cost: {error}") from None
    if options.json:
        print_json(as_document(costs, without, prices, total))
    else:
        print(as_page(costs, without, prices, total).plain)
    if not costs:
        raise Refused("orch facts cost: the files have no row that can be priced")
    return 0
