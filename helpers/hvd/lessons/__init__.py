"""What notebook 08 shows: longer parts of its cells, and runs that were recorded elsewhere."""
