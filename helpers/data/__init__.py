"""Data sets: preparing, reading, and cutting them into the batches of each rank.

recipes  which sets there are, and how each is made; grammar makes the sentences of one
prepare  makes a set on disk, whole or not at all: the command `data/prepare.sh`
sets     what a run asks for: a prepared set, or the reader's own
batches  which samples a rank gets in which batch, and how each is cropped and flipped
loaders  the fast path and the workers' path, with equal batches; evaluation
"""
