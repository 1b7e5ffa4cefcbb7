"""Measures the policies on a real engine: `python -m tests.benchmarks.policy SCENARIO`.

    __main__    the command line
    mixed       interactive and bulk requests at twice the capacity; mixed_report formats it
    batches     tokens per second by batch size
    side_by_side  requests one by one, interleaved and batched: a part of batches
    lengths     a backlog of bulk requests as it comes, and grouped by length
    coalescing  three identical streams against one
    kv          contexts that together exceed the KV cache
    placement   two engines behind one sidecar, and two sidecars in a row
    keys        what API keys get of one engine
    affinity    two engines with a prefix cache, placed by prefix or by load alone
    planning    what orch plan predicts for one and two engines, and what they do
    tuning      the slots that orch tune finds, and the best of an exhaustive sweep
    summary     pure: computes figures from answers
    profiles    the profiles under comparison
    rig         an engine, and sidecars in front of it, as processes
    load        a load generator: open and closed loops of streams
    call        one request and its outcome
    work        pure: the requests and their arrivals, from fixed seeds
    record      tables, verdicts, and the JSON file of a run

A comparison uses one engine, with the same requests in interleaved rounds. The speed of a shared
machine may drift by a factor: only ratios within a run are meaningful.
"""
