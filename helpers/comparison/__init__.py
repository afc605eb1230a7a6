"""Runs side by side.

run         one training run, from its configuration to its record
ladder      a ladder of runs, and `compare`, which makes them one after the other
comparison  what recorded runs are beside the first of them
studies     series of runs too long for a notebook: what they run, recording and reading them
form        the same choices in a form below a notebook's cell
"""
