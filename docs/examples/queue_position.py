"""Shows the place of a request in the queue while it waits, then its answer.

`python docs/examples/queue_position.py http://127.0.0.1:8080`
"""

import json
import sys
from urllib.request import Request, urlopen

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
with urlopen(f"{url}/v1/models") as answer:
    model = json.load(answer)["data"][0]["id"]
body = {"model": model, "prompt": "A slot is", "max_tokens": 32, "stream": True}
headers = {"Content-Type": "application/json", "X-Orch-Queue-Events": "sse"}
with urlopen(Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)) as events:
    for line in events:
        text = line.decode().strip()
        if text.startswith(":"):  # a comment: what other clients of such streams ignore
            print(text.removeprefix(": "), file=sys.stderr)
        elif text.startswith("data: {"):
            choices = json.loads(text.removeprefix("data: "))["choices"]
            print(choices[0]["text"] if choices else "", end="", flush=True)
print()
