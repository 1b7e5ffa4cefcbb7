"""Decides what becomes of requests in vLLM's API server, before they reach the engine.

The middleware counts requests and checks their leases, and notices calls that suspend the engine;
`statements_endpoint` answers with signed statements.

Pure: `routes`. May import `evidence`, `state` and `contracts`.
"""
