"""Asks a model through the sidecar with the official OpenAI client, and prints the answer.

The client reads the address from OPENAI_BASE_URL (http://127.0.0.1:8080/v1) and OPENAI_API_KEY;
without keys at the sidecar any text will do.
"""

from openai import OpenAI

client = OpenAI()
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Why do engines batch?"}],
    max_tokens=32,
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
