"""Several sidecars in front of one engine: what they cost, and what is left when they are killed.

    python -m tests.benchmarks.sidecars throughput      # or both: make bench-sidecars
    python -m tests.benchmarks.sidecars crashes --minutes 10

`throughput`: 1, 2 and 4 sidecar processes in interleaved rounds at the same engine (8 slots), 32
clients in a closed loop spread over them. `crashes`: four sidecars that are killed at random while
clients retry what they lost, then one whose network is cut. `--scripted` takes an engine that
generates nothing and records which attempt it answered. Any violation makes the exit code 1.

Dependencies point down this list:

    __main__    the command line
    throughput  the rounds and their table
    crashes     kills, and what must be so after each
    cut         a sidecar that is cut off from the engine, by a proxy that forwards nothing
    load        clients in closed loops, and what they were answered
    servers     the engine and the sidecars, as processes
    scripted    the scripted engine, a separate program
"""
