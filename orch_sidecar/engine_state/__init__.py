"""engine_state."""
