"""Measures an endpoint or a device, and says what the figure is worth.

Dependencies point down this list; nothing imports what stands above it:

    cli          `orch bench`: its commands
    decode       `orch bench decode`: decode steps on a device, without an engine
    planning     what a command asks for, as a plan
    options      what the words of the command line mean
    words        pure: a result in words
    sweep        runs of one load at several concurrencies
    find_rate    the search for a rate as it is run
    rate_search  pure: the largest rate that keeps an SLO
    measure      one run from end to end
    fact         pure: a result as a row, if it is a fact
    summary      pure: what a run came to, and its verdict
    tally        pure: what the calls of a run come to
    identity     pure: who is measured
    result       pure: the result of a run, as a file
    idle         the engine's state at either end of a run
    progress     a progress bar
    load         drives requests, and watches itself
    client       the client's side of a connection
    endpoint     where requests go
    stream       pure: the events of an answer as they come in
    call         pure: one request, and what became of it; how the client did
    scenario     pure: what is to be run
    interrupt    Ctrl-C, as something to wait for
    prompt_file  prompts out of a file
    prompts      pure: prompts, and how they are asked
    arrivals     pure: when the requests of an open loop are due
    about        the client's machine
    fit          pure: how long a step takes by how many sequences it decodes, fitted

Of the rest of `orch_sidecar` only `facts` and the pure `http1` and `usage` are imported.
"""
