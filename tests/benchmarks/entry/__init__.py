"""`make bench-entry`: one sidecar in front of many engines.

``python -m tests.benchmarks.entry``. The engines are one program in C
(``tests/benchmarks/proxy/upstream.c``), each at an address of the loopback network of its own; each
reports a change of its state as often as it may. Modules::

    __main__   the command line, and the table
    entry      starts engines and sidecar, and measures one of them
    stall      how long the event loop is blocked while a page is fetched
    placement  drawn pools beside all pools, ``python -m tests.benchmarks.entry.placement``
    virtual    engines, sidecars and requests in virtual time
"""
