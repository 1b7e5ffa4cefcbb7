"""Releases of vLLM that cannot run here: the names in them that our hooks look for.

    record    what a committed vllm-<version>.json holds; knows no network
    ranges    a file whose bytes are asked for range by range; knows no network
    fetch     reads a release from the package index and writes its record
"""
