"""Makes a plan from the options and from what the endpoint reports about itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


async def plan_of(options: argparse.Namespace, scenario: Scenario) -> Plan:
    """Returns the plan. Raises InvalidOptions, EndpointError, OSError and ValueError."""
    endpoint = Endpoint.of(options.url, api_key(), dict(options.header))
    model = options.model or await _model(endpoint, options.pool)
    made, text, max_prompts = await _prompts(options, endpoint, model)
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
    )


async def _model(endpoint: Endpoint, pool: str | None) -> str:
    """Returns the first model of the pool, or of the endpoint if it reports no pools."""
    found = await read_capabilities(endpoint, pool)
    return await endpoint.model() if found is None else found.snapshot.models[0]


async def _prompts(
    options: argparse.Namespace, endpoint: Endpoint, model: str
) -> tuple[Callable[[int], Iterator[Prompt]], str, int | None]:
    """Returns the prompts by seed, their description, and their number (None: no limit)."""
    if options.prompts is not None:
        read = prompt_file.from_file(options.prompts, options.output_tokens, options.seed)
        text = f"{len(read)} of the file {options.prompts.name}"
        return lambda seed: prompts.cycle(read, seed), text, None

    async def tokenize(text: str) -> list[int]:
        tokens = await endpoint.tokens(model, text)
        if tokens is None:
            raise InvalidOptions(
                f"{endpoint.url} has no /tokenize, which synthetic prompts need: give --prompts"
            )
        return tokens

    ids = await prompts.vocabulary(tokenize)
    length, output_tokens = options.input_tokens, options.output_tokens or _OUTPUT_TOKENS
    return (
        lambda seed: prompts.synthetic(ids, length, output_tokens, seed),
        f"synthetic, {length} in, {output_tokens} out",
        prompts.count_distinct(ids, length),
    )
