"""Asks a model through the sidecar with the official Anthropic client.

The client reads the address from ANTHROPIC_BASE_URL (http://127.0.0.1:8080) and ANTHROPIC_API_KEY;
without keys at the sidecar any text will do.
"""

from anthropic import Anthropic

client = Anthropic()
model = client.models.list().data[0].id
message = client.messages.create(
    model=model,
    messages=[{"role": "user", "content": "Why do engines batch?"}],
    max_tokens=32,
)
print("".join(block.text for block in message.content if block.type == "text"))
