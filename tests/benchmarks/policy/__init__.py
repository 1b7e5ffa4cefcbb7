"""What the policies do, measured on a real engine: `python -m tests.benchmarks.policy SCENARIO`.

    __main__    the command line
    mixed       interactive and bulk requests at twice the capacity; mixed_report its table
    batches     tokens per second by the size of the batch
    coalescing  three identical streams against one
    kv          contexts that do not fit the KV cache together
    placement   two engines behind one sidecar, and two sidecars in a row
    summary     pure: answers in, figures out
    profiles    the profiles that are compared
    rig         an engine, and sidecars in front of it, as processes
    load        a load generator: open and closed loops of streams
    call        one request, and what became of it
    work        pure: what is asked of the engine, from fixed seeds
    record      tables, verdicts, and the JSON file of a run

One engine per comparison; what is compared gets the very same requests, in turns. A machine's
speed drifts with its neighbours by a factor: only ratios within a run say something.
"""
