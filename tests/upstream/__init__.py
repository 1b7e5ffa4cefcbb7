"""vLLM's own tests of its entry points, run against an engine directly and through a sidecar.

`python -m tests.upstream` fetches them from vLLM's source distribution. `harness` is copied among
them: it stands in for the helpers with which they start a server.
"""
