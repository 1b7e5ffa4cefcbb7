"""What a command asks for, as a plan: its words, and what the endpoint says about itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from orch_sidecar.tools.bench.load import prompt_file, prompts
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.prompts import Prompt
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.plan.options import Usage, api_key, given_of
from orch_sidecar.tools.bench.runs.idle import look
from orch_sidecar.tools.bench.runs.run import Plan
from orch_sidecar.tools.facts.comparison import plot
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.row import COLUMNS
from orch_sidecar.tools.facts.tables.table import UnreadableFile

_OUTPUT_TOKENS: Final = 128

# Characters of a file's first line: more than a header has.
_LINE: Final = 1000


def check_files(options: argparse.Namespace) -> None:
    """Raises Usage, or what `plot.require` does, where minutes later nothing could be written."""
    given: dict[str, Path] = {
        f"--{name} {path}": path
        for name in ("output", "facts", "plot")
        if (path := getattr(options, name, None)) is not None
    }
    taken: dict[Path, str] = {}
    for said, path in given.items():
        if path.is_dir() or not path.resolve().parent.is_dir():
            raise Usage(f"{said}: must be a file in a folder that is there")
        other = taken.setdefault(path.resolve(), said)
        if other != said:
            raise Usage(f"{said}: must not be the file of {other}")
        _check_writable(said, path)
    if options.output is None:
        _check_writable("without --output: the result", Path("orch-bench.json"))
    elif _is_table(options.output):
        raise Usage(f"--output {options.output}: is a table of facts, and would be lost: --facts")
    if getattr(options, "plot", None) is not None:
        plot.require(options.plot)
    if options.facts is not None:
        try:
            files.check_appendable(options.facts)
        except UnreadableFile as error:
            raise Usage(f"--facts {error}") from None


def _check_writable(said: str, path: Path) -> None:
    try:
        files.check_writable(path)
    except OSError as error:
        raise Usage(f"{said}: cannot be written: {error.strerror or error}") from None


def _is_table(path: Path) -> bool:
    """Whether a file begins as a table of facts does, be it one with faults."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return file.readline(_LINE).replace('"', "").startswith(f"{COLUMNS[0]},")


async def plan_of(options: argparse.Namespace, scenario: Scenario) -> Plan:
    """The plan. Raises Usage, EndpointError, OSError and ValueError."""
    endpoint = Endpoint.of(options.url, api_key(), dict(options.header))
    model = options.model or await _model(endpoint, options.pool)
    made, told, most = await _prompts(options, endpoint, model)
    return Plan(
        endpoint=endpoint,
        model=model,
        pool=options.pool,
        scenario=scenario,
        prompts=made,
        prompts_told=told,
        ignore_eos=not options.no_ignore_eos,
        given=given_of(options),
        for_row=options.facts is not None,
        most_prompts=most,
    )


async def _model(endpoint: Endpoint, pool: str | None) -> str:
    """The first of the pool's, where it says which these are; else the first of all."""
    found = await look(endpoint, pool)
    return await endpoint.model() if found is None else found.snapshot.models[0]


async def _prompts(
    options: argparse.Namespace, endpoint: Endpoint, model: str
) -> tuple[Callable[[int], Iterator[Prompt]], str, int | None]:
    """Prompts by seed, what they are in words, and how many there are unless it is without end."""
    if options.prompts is not None:
        read = prompt_file.from_file(options.prompts, options.output_tokens, options.seed)
        told = f"{len(read)} of the file {options.prompts.name}"
        return lambda seed: prompts.cycle(read, seed), told, None

    async def tokenize(text: str) -> list[int]:
        tokens = await endpoint.tokens(model, text)
        if tokens is None:
            raise Usage(f"{endpoint.url} has no /tokenize for synthetic prompts: give --prompts")
        return tokens

    ids = await prompts.vocabulary(tokenize)
    length, asked = options.input_tokens, options.output_tokens or _OUTPUT_TOKENS
    told = f"synthetic, {length} in, {asked} out"
    most = prompts.there_are(ids, length)
    return lambda seed: prompts.synthetic(ids, length, asked, seed), told, most
