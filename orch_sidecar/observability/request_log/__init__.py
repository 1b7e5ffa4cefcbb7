"""The request log: a JSON line for each request that has ended, if an operator wants one.

Nothing of it is on the path of a request: records are taken where metrics count them, many at once,
and a thread writes them.
"""
