"""coalescing."""
