"""Claims slots of an engine that others use, too, for this sidecar and its parents. Pure."""
