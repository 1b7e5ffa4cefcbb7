"""Programs that measure, not part of the test run: docs/measurements has their figures."""
