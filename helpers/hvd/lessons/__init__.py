"""Longer parts of the cells of notebook 08, and lessons that run in environments of their own."""
