"""`make bench-scale`: many open streams through one sidecar, and what one core carries.

``python -m tests.benchmarks.scale``. The scripted engine and the load are programs in C
(``tests/benchmarks/proxy``), on the same machine. Modules::

    __main__   the command line, and the tables
    fleet      from tokens/s per core to sidecars of a fleet; pure
    hold       holds streams open through one target, and measures
"""
