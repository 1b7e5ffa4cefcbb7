"""`orch top`: shows what a sidecar does, live in a terminal or once for a script."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Final

from orch_sidecar.tools.arguments import TextParser
from orch_sidecar.tools.bench.load.endpoint import KEY_VARIABLE
from orch_sidecar.tools.terminal import escape_unencodable_output
from orch_sidecar.tools.top.live import InvalidDocument, Live
from orch_sidecar.tools.top.sidecar import Away, NoSidecar, Sidecar, sidecar_at

_DESCRIPTION: Final = f"""Shows what a sidecar does: pools, slots, batches, the queue, rates.

At the operators' listener (by default on port 9080) you need no key, and can cancel requests,
drain and resume pools. At the clients' listener you can only look; if clients need keys, it reads
one from ${KEY_VARIABLE}."""

_EPILOG: Final = """keys: up and down choose a request, left and right a pool; s sorts
      requests, p pools; c cancels the request, d drains and r resumes the pool, each after a
      question; q quits

examples:
  orch top
  orch top --url http://127.0.0.1:8080
  orch top --once                      one snapshot as text
  orch top --json                      one snapshot as JSON

exit codes: 0 shown, 1 no sidecar, or one that does not answer, 2 bad usage"""

_WITHIN_S: Final = 10.0


def main(words: list[str]) -> None:
    """Runs the command; exits with its code if that is not 0."""
    escape_unencodable_output()
    options = parser().parse_args(words)
    try:
        asyncio.run(_run(options))
    except (NoSidecar, InvalidDocument) as error:
        sys.exit(f"orch top: {error}")
    except Away as error:
        sys.exit(
            f"orch top: {options.url}: {error}: is a sidecar running there? `orch sidecar` and "
            "`orch up` print their addresses"
        )
    except KeyboardInterrupt:
        sys.exit(130)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = TextParser(prog="orch top", description=_DESCRIPTION, epilog=_EPILOG)
    found.add_argument(
        "--url", default="http://127.0.0.1:9080",
        help="of the operators' or the clients' listener; default: %(default)s",
    )  # fmt: skip
    found.add_argument("--once", action="store_true", help="print one snapshot, and end")
    found.add_argument("--json", action="store_true", help="print one snapshot as JSON, and end")
    return found


async def _run(options: argparse.Namespace) -> None:
    async with sidecar_at(options.url) as sidecar:
        if options.json:
            print(json.dumps((await _first(sidecar)).document, indent=2))
            return
        try:
            from rich.console import Console
        except ImportError:
            sys.exit("orch top: it needs rich, which --json does not: pip install rich")
        from orch_sidecar.tools.top.screen import Screen
        from orch_sidecar.tools.top.view import Look, snapshot

        console = Console(highlight=False, markup=False, emoji=False)
        if options.once:
            look = Look(console.width)
            for line in snapshot(await _first(sidecar), look):
                console.print(line, soft_wrap=True)
        elif not (sys.stdin.isatty() and console.is_terminal and not console.is_dumb_terminal):
            sys.exit("orch top: stdin and stdout must be a terminal: use --once or --json")
        else:
            await Screen(sidecar, console).run()


async def _first(sidecar: Sidecar) -> Live:
    """Returns the document as of its first event. Raises Away and NoSidecar."""
    live = Live()
    try:
        async with asyncio.timeout(_WITHIN_S):
            async for name, data in sidecar.events():
                live.apply(name, data)
                if live.document:
                    return live
    except TimeoutError as error:
        raise Away("it sends nothing") from error
    raise Away("it has ended the stream")
