"""Runs on several machines, and two hosts on one machine to try them on.

    launch(fn, 4, on="slurm", nodes=2, partition="all")
    helpers.cluster.engines()      which can be used here, and why others cannot

slurm          an engine of `launch`: a Slurm cluster through submitit
node           what it starts on each node: the fork server there, under the notebook's orders
commands       what to type on each host to start `python -m helpers train`: torchrun, mpirun, Slurm
log            the progress of runs from a command line, as lines
torchrun       torchrun, which also names the hosts that came when one stays away
twohosts       two hosts on one machine: network namespaces joined by a slow link
link_emulator  that link, where it has to delay packets
"""

from ..launcher.engines import described, engine, engines  # noqa: F401  the names of this package
