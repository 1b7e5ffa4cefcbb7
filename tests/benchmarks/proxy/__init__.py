"""`make bench-proxy`: compares the sidecar with nginx, two Rust routers and a plain aiohttp proxy.

``python -m tests.benchmarks.proxy``. Everything runs on loopback on one machine, in interleaved
rounds: only ratios within a run are meaningful.

Modules, each imports only those below it::

    __main__   the command line and the order of rounds
    table      formats results as Markdown
    goals      what the sidecar should reach, and whether it did
    columns    the metrics and how each is computed
    measure    cells: one load on one target, and its cost
    profiling/ where each microsecond goes (``--profile``)
    targets    the proxies under test, and how each is started
    build      the C programs and the routers' environment, in a cache
    processes  child processes: start, stop, CPU seconds, memory

``upstream.c`` is the scripted engine, ``client.c`` the load, ``plain_proxy.py`` the aiohttp proxy,
``floor_proxy.py`` the least that a relay on aiohttp's server costs.
"""
