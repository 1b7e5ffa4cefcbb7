"""Programs that measure, not part of the test run: docs/measurements has them with their figures."""
