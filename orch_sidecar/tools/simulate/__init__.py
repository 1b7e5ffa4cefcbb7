"""Admission in virtual time: how policies compare, and what would be if.

Dependencies point down this list:

    cli       `orch simulate`
    table     pure: figures as text
    compare   pure: the policies on the very same arrivals, capacity and SLO measured
    report    pure: what a run says
    run       pure: one run, from event to event
    fronts    pure: what stands before the engine: admission, or nothing
    workload  pure: who comes when, and with how much
    engine    pure: a model of a continuous-batching engine, step by step

The admission is the one that serves: its core knows no clock, so it runs in virtual time as it
does in real time. The engine is a model, as good as the step time it is given. A run depends on
nothing but its arguments: the same seed gives the same figures.
"""
