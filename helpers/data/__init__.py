"""Data sets: preparing, reading, and cutting them into the batches of each rank."""
