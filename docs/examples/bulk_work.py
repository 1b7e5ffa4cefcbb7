"""Sends a file of prompts, one per line, as bulk work; prints one answer per line, in order.

`python docs/examples/bulk_work.py prompts.txt`, with OPENAI_BASE_URL and OPENAI_API_KEY set.
Interactive requests go first, so this may run while people use the engine. A refused request is
sent again by the client after the time that the sidecar names.
"""

import asyncio
import sys
from pathlib import Path

from openai import AsyncOpenAI


async def main(prompts: list[str]) -> None:
    async with AsyncOpenAI(default_headers={"X-Orch-Class": "bulk"}, max_retries=20) as client:
        model = (await client.models.list()).data[0].id

        async def answer(prompt: str) -> str:
            made = await client.completions.create(model=model, prompt=prompt, max_tokens=32)
            return " ".join(made.choices[0].text.split())

        for text in await asyncio.gather(*(answer(prompt) for prompt in prompts)):
            print(text)


asyncio.run(main(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()))
