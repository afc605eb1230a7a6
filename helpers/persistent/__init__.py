"""`helpers.ranks`: persistent ranks, which stay between calls with their process group and what they hold.

ranks           what the notebook holds: `ranks(fn)`, `ranks[1](fn)`, `ranks.state`, `ranks.close`
pool            watches the processes: hands out calls, collects answers, interrupts all when one has failed
worker          what a persistent rank does; how it is interrupted in a collective, and how it joins a new group
sockets         the connections of its process groups, which an interrupt shuts
magic           the cell magic `%%ranks`
"""
