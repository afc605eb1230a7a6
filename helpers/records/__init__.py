"""What a run leaves behind, and reading it back. Nothing here needs torch, but a new record's machine.

store   the record of a run, and writing it
read    records from disk, checked and brought to today's shape; their numbers
seeds   several seeds of each run put together
"""
