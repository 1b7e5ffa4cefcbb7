"""Shows clients that ask for it their place in the queue, within the stream that they wait for.

`X-Orch-Queue-Events: sse`: a stream whose request is queued begins at once, with comments until
the engine's events come. Requests that do not ask for it never enter this package.
"""
