"""Where the microseconds go: samples a target with py-spy, and divides its CPU by component."""
