"""The proxy benchmark: our sidecar beside nginx, two Rust routers and a plain aiohttp proxy.

``python -m tests.benchmarks.proxy`` (``make bench-proxy``). Everything runs on loopback, on one
machine, in interleaved rounds of one run: only ratios within a run mean something.

Modules, each knows only those below it::

    __main__   the command line and the order of rounds
    table      results in, Markdown out
    columns    the metrics and how each is read
    measure    cells: one load on one target, and what it cost
    targets    who is measured, and how each is started
    build      the C programs and the routers' environment, in a cache
    processes  child processes: start, stop, CPU seconds, memory

``upstream.c`` is the scripted engine, ``client.c`` the load, ``plain_proxy.py`` the aiohttp proxy.
"""
