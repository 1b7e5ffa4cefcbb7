"""What a command asks for, as a plan: its words, and what the endpoint says about itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Final

from orch_sidecar.bench import prompt_file, prompts
from orch_sidecar.bench.endpoint import Endpoint
from orch_sidecar.bench.idle import look
from orch_sidecar.bench.measure import Plan
from orch_sidecar.bench.options import Usage, api_key, given_of
from orch_sidecar.bench.prompts import Prompt
from orch_sidecar.bench.scenario import Scenario
from orch_sidecar.facts import files, plot
from orch_sidecar.facts.check import header_fault

_OUTPUT_TOKENS: Final = 128


def check_files(options: argparse.Namespace) -> None:
    """Raises Usage, or what `plot.require` does, where minutes later nothing could be written."""
    for name in ("output", "facts", "plot"):
        path = getattr(options, name, None)
        if path is None:
            continue
        if path.is_dir() or not path.resolve().parent.is_dir():
            raise Usage(f"--{name} {path}: must be a file in a folder that is there")
    if getattr(options, "plot", None) is not None:
        plot.require(options.plot)
    if options.facts is not None and options.facts.exists():
        table = files.read(options.facts)
        fault = None if table.header is None else header_fault(table)
        if fault is not None:
            raise Usage(f"--facts {fault}")


async def plan_of(options: argparse.Namespace, scenario: Scenario) -> Plan:
    """The plan. Raises Usage, EndpointError, OSError and ValueError."""
    endpoint = Endpoint.of(options.url, api_key(), dict(options.header))
    model = options.model or await _model(endpoint, options.pool)
    made, told = await _prompts(options, endpoint, model)
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
    )


async def _model(endpoint: Endpoint, pool: str | None) -> str:
    """The first of the pool's, where it says which these are; else the first of all."""
    found = await look(endpoint, pool)
    return await endpoint.model() if found is None else found.snapshot.models[0]


async def _prompts(
    options: argparse.Namespace, endpoint: Endpoint, model: str
) -> tuple[Callable[[int], Iterator[Prompt]], str]:
    """Prompts by seed, and what they are in words."""
    if options.prompts is not None:
        read = prompt_file.from_file(options.prompts, options.output_tokens, options.seed)
        told = f"{len(read)} of the file {options.prompts.name}"
        return lambda seed: prompts.cycle(read, seed), told

    async def tokenize(text: str) -> list[int]:
        tokens = await endpoint.tokens(model, text)
        if tokens is None:
            raise Usage(f"{endpoint.url} has no /tokenize for synthetic prompts: give --prompts")
        return tokens

    ids = await prompts.vocabulary(tokenize)
    length, asked = options.input_tokens, options.output_tokens or _OUTPUT_TOKENS
    told = f"synthetic, {length} in, {asked} out"
    return lambda seed: prompts.synthetic(ids, length, asked, seed), told
