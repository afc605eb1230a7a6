"""Runs side by side.

run         one training run, from its configuration to its record
ladder      a ladder of runs, and `compare`, which makes them one after the other
comparison  what recorded runs are beside the first of them
studies     reading recorded series of runs that are too long for a notebook
form        the same choices in a form below a notebook's cell
"""
