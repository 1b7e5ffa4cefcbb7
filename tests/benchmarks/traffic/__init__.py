"""Replays public traces on a real engine: `python -m tests.benchmarks.traffic`.

    __main__    the command line
    scenarios   pure: which trace, at which load, beside which bulk work, and the requests
    ways        through the sidecar, directly, directly by priority, behind a semaphore
    replay      sends a schedule and keeps bulk clients busy
    measure     one engine: its capacity, the SLO, each way in turn
    report      pure: figures of a turn, tables, verdicts
    simulated   the same traces in virtual time, beside the clairvoyant policy

All ways get the same arrivals on the same engine, in interleaved rounds. The lengths of the traces
are those of large models and are divided here; the times are multiplied, so that the rate is a
multiple of what this engine can do.
"""
