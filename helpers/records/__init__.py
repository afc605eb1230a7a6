"""What a run leaves behind, and reading it back. Nothing here needs torch, but a new record's machine.

store    the record of a run, and writing it
read     records from disk, and their numbers
speedup  how many times as fast one run is as another, with a 95% interval
words    how numbers and labels are written
"""
