"""What this sidecar claims of an engine that others use, too, for itself and its parents. Pure."""
