"""Runs on several machines, and two hosts on one machine to try them on.

commands       what to type on each host to start `python -m helpers train`: torchrun, mpirun, Slurm
log            the progress of runs from a command line, as lines
torchrun       torchrun, which also names the hosts that came when one stays away
twohosts       two hosts on one machine: network namespaces joined by a slow link
link_emulator  that link, where it has to delay packets
"""
