"""Running everything on this machine: a small model, the engine, the sidecar, a check."""
