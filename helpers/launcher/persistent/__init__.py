"""`helpers.ranks`: persistent ranks, which stay between calls with their process group and what they hold.

ranks           what the notebook holds: `ranks(fn)`, `ranks[1](fn)`, `ranks.state`, `ranks.debug`, `ranks.close`
pool            watches the processes: hands out calls, collects answers, interrupts all when one has failed
worker          what a persistent rank does; how it is interrupted in a collective, and how it joins a new group; pdb
sockets         the connections of its process groups, which an interrupt shuts
shared_message  calls and answers: small ones in a message, large ones through shared memory
magic           the cell magic `%%ranks`
"""
