"""`helpers.distributed`: the process group of whichever launcher started this process.

process_group   join it and leave it; a rank's place among the others (World)
rendezvous      how ranks of mpirun and srun find each other, to whom nobody gave an address
"""
