"""Makes a plan from the options and from what the endpoint reports about itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orch_sidecar.tools.bench.load import prompts
from orch_sidecar.tools.bench.load.capabilities import read_capabilities
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.bench.load.prompts import Prompt
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.plan import prompt_file
from orch_sidecar.tools.bench.plan.options import InvalidOptions, api_key, overrides_of
from orch_sidecar.tools.bench.results.identity import IdentityOverrides

_OUTPUT_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and where.

    `prompts`: returns the prompts of a seed. `prompts_text`: describes them. `max_prompts`: how
    many there are, None without a limit. `for_row`: the result is to become a row of a table.
    `ids`: the token ids that the prompts of a trace are made of. `restarts`: how often a run begins
    again that others disturb. `loadgen_logs`: the folder of the logs of MLCommons' load generator;
    None: by the id of the run.
    """

    endpoint: Endpoint
    model: str
    pool: str | None
    scenario: Scenario
    prompts: Callable[[int], Iterator[Prompt]]
    prompts_text: str
    ignore_eos: bool
    given: IdentityOverrides
    for_row: bool = False
    max_prompts: int | None = None
    ids: tuple[int, ...] = ()
    restarts: int = 0
    loadgen_logs: Path | None = None


async def plan_of(options: argparse.Namespace, scenario: Scenario) -> Plan:
    """Returns the plan. Raises InvalidOptions, EndpointError, OSError and ValueError."""
    endpoint = Endpoint.of(options.url, api_key(), dict(options.header))
    model = options.model or await _model(endpoint, options.pool)
    ids: tuple[int, ...] = ()
    if options.prompts is None or scenario.replay is not None:
        ids = await _vocabulary(endpoint, model)
    made, text, max_prompts = _prompts(options, ids)
    if scenario.replay is not None:
        beside = f"; bulk: {text}" if scenario.replay.bulk_clients else ""
        text = f"synthetic, of the lengths of {scenario.replay.trace.name}{beside}"
    return Plan(
        endpoint=endpoint,
        model=model,
        pool=options.pool,
        scenario=scenario,
        prompts=made,
        prompts_text=text,
        ignore_eos=not options.no_ignore_eos,
        given=overrides_of(options),
        for_row=options.facts is not None,
        max_prompts=max_prompts,
        ids=ids,
        # A test of MLCommons' load generator cannot be stopped, and there is one in a process.
        restarts=0 if scenario.loadgen else options.restarts,
        loadgen_logs=options.output and logs_beside(options.output),
    )


def logs_beside(output: Path) -> Path:
    """Returns the folder beside a result that has the logs of MLCommons' load generator."""
    return output.with_name(f"{output.stem}-loadgen")


async def _model(endpoint: Endpoint, pool: str | None) -> str:
    """Returns the first model of the pool, or of the endpoint if it reports no pools."""
    found = await read_capabilities(endpoint, pool)
    return await endpoint.model() if found is None else found.snapshot.models[0]


async def _vocabulary(endpoint: Endpoint, model: str) -> tuple[int, ...]:
    """Returns the token ids that synthetic prompts are made of."""

    async def tokenize(text: str) -> list[int]:
        tokens = await endpoint.tokens(model, text)
        if tokens is None:
            raise InvalidOptions(
                f"{endpoint.url} has no /tokenize, which synthetic prompts need: give --prompts"
            )
        return tokens

    return await prompts.vocabulary(tokenize)


def _prompts(
    options: argparse.Namespace, ids: tuple[int, ...]
) -> tuple[Callable[[int], Iterator[Prompt]], str, int | None]:
    """Returns the prompts by seed, their description, and their number (None: no limit)."""
    if options.prompts is not None:
        read = prompt_file.from_file(options.prompts, options.output_tokens, options.seed)
        text = f"{len(read)} of the file {options.prompts.name}"
        return lambda seed: prompts.cycle(read, seed), text, None
    length, output_tokens = options.input_tokens, options.output_tokens or _OUTPUT_TOKENS
    return (
        lambda seed: prompts.synthetic(ids, length, output_tokens, seed),
        f"synthetic, {length} in, {output_tokens} out",
        prompts.count_distinct(ids, length),
    )
