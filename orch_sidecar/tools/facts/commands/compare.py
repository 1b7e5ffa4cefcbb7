"""`orch facts compare`: which facts may stand beside which, as tables and as a picture."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.facts.comparison import report
from orch_sidecar.tools.facts.comparison.compare import compare
from orch_sidecar.tools.facts.comparison.panels import title_and_panels
from orch_sidecar.tools.facts.comparison.plot import PlotUnavailable, draw, require
from orch_sidecar.tools.facts.tables.check import check, valid_rows
from orch_sidecar.tools.facts.tables.files import read

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_COMPARE: Final = """Compares facts by their batch.

Only rows that are alike in model_id, engine and its version, precision, gpu, gpu_count,
input_tokens, output_tokens and measurement_type, and whose notes say arrivals of one kind (open
loop, closed loop, all at once, or nothing), make one set. Speed-up and efficiency (speed-up over
the growth of the batch) are against the set's smallest batch; several rows for one batch count as
their median. Sets that look alike and are not are told. Rows that are to_be_confirmed
take part in nothing. Files must be without faults."""

_EPILOG: Final = """examples:
  orch facts compare tps_model_gpu.csv
  orch facts compare facts/*.csv --plot batches.svg
  orch facts compare tps_model_gpu.csv --json"""


def add_commands(commands: Commands) -> None:
    """`compare`."""
    parser = commands.add_parser(
        "compare",
        help="speed-up and efficiency by batch, of what may be compared",
        description=_COMPARE,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE")
    add("--plot", type=Path, metavar="FILE", help="draw tokens/s and TTFT here (.png or .svg)")
    add("--json", action="store_true", help="everything, as JSON")
    parser.set_defaults(run=_compare, usage=parser)


def _compare(options: argparse.Namespace) -> int:
    if options.plot is not None:
        try:
            require(options.plot)
        except (ValueError, PlotUnavailable) as error:
            options.usage.error(f"--plot: {error}")
    tables = [read(path) for path in options.files]
    faults = [fault for table in tables for fault in check(table)]
    if faults:
        # What comes out is the comparison, or nothing.
        print(*faults, "nothing is compared with faults in it", sep="\n", file=sys.stderr)
        return 1
    found = compare([placed for table in tables for placed in valid_rows(table)])
    print(json.dumps(report.document(found), indent=2) if options.json else report.text(found))
    if not found.sets:
        print("orch facts compare: there is no row that can be compared", file=sys.stderr)
        return 1
    if options.plot is not None:
        title, panels = title_and_panels(found)
        draw(options.plot, title, panels)
    return 0
