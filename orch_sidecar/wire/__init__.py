"""Bytes: HTTP/1.1 framing, connections, how long they live, heads, bodies and event streams.

Pure: `backpressure`, `event_stream`, `forwarding`, `http1`. May import `api` and `config`.
"""
