"""Decides which requests pass from vLLM's API server to the engine.

The middleware counts requests and checks their leases, and notices calls that suspend the engine;
`statements_endpoint` answers with signed statements.

Pure: `routes`. May import `evidence`, `state` and `contracts`.
"""
