"""Releases of vLLM that cannot run here: the names in them that our hooks look for.

    record    what a committed vllm-<version>.json holds
    ranges    a file whose bytes are asked for range by range
    fetch     reads a release from the package index and writes its record

Only `fetch` knows a network, and only a developer runs it.
"""
