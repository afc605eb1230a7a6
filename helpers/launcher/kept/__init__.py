"""`helpers.ranks`: ranks that stay between calls, with their process group and what they hold.

handle   what the notebook holds: `ranks(fn)`, `ranks[1](fn)`, `ranks.state`, `ranks.debug`, `ranks.close`
crew     watches the ranks: hands out calls, collects answers, interrupts them when one has failed
stay     what a kept rank does; how it is interrupted in a collective, and how it joins a new group
parcel   calls and answers on their way: small ones in a message, large ones through shared memory
watch    their row of the panel; looks after them between calls
magic    the cell magic `%%ranks`; `cell`: such a cell on its rank
debug    pdb on a rank, with its prompt in the cell
"""
