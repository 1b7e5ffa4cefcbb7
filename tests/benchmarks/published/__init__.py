"""What four documents about batching state, beside what is measured here: `make bench-published`.

    __main__  the command: one table, with a sentence where a figure differs
    claims    pure: the published figures, and why ours may differ
    engine    the ways of serving, on one engine of 103 M parameters
    models    what needs no engine: the paper's schedule and kernel, a backend that takes 50 ms

Ratios are of one run on one engine. On a shared machine they are off by a tenth or more.
"""
