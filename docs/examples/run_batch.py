"""Runs a file of requests as a batch, and prints its answers, one per line.

`python docs/examples/run_batch.py requests.jsonl`, with OPENAI_BASE_URL and OPENAI_API_KEY set. The
sidecar needs ORCH_BATCHES.
"""

import sys
import time
from pathlib import Path

from openai import OpenAI

with OpenAI() as client:
    file = client.files.create(file=Path(sys.argv[1]), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        time.sleep(1)
        batch = client.batches.retrieve(batch.id)
    print(f"{batch.id}: {batch.status}, {batch.request_counts}", file=sys.stderr)
    for problem in (batch.errors and batch.errors.data) or ():
        print(f"line {problem.line}: {problem.message}", file=sys.stderr)
    for name in filter(None, (batch.output_file_id, batch.error_file_id)):
        print(client.files.content(name).text, end="")
