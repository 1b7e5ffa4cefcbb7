"""The tools of the command line beside the sidecar: measuring, comparing, simulating, running it
on this machine, draining, keys.

Each package states its own dependencies. `bench` imports `facts`; of the sidecar's packages the
tools import the pure ones they need, and nothing of the sidecar imports a tool.
"""
