"""`horovod.run(function, np=N)`: the function on N ranks of this machine."""

import socket

LOCAL = ("localhost", "127.0.0.1")
INDIFFERENT = {"use_gloo", "use_mpi", "verbose", "start_timeout", "network_interface", "disable_cache"}


def run(func, args=(), kwargs=None, np=1, hosts=None, env=None, executable=None, **others):
    """Call `func(*args, **kwargs)` on `np` ranks; returns the list of their results, by rank.

    It is `helpers.launch` by Horovod's name: the ranks are fresh processes, what they print is labelled, and a
    rank that fails is a `helpers.RankError`. Options that choose between Horovod's own transports are accepted.

    Raises:
        ValueError: `hosts` names another machine, or there is an option without a counterpart.
    """
    from ..launcher.launch import launch

    for host in (hosts or "").split(","):
        name = host.partition(":")[0].strip()
        if name and name not in (*LOCAL, socket.gethostname()):
            raise ValueError(f"hosts names {name}; ranks on several machines are started by mpirun or torchrun")
    unknown = sorted(name for name, value in others.items() if value is not None and name not in INDIFFERENT)
    if unknown:
        raise ValueError(f"run() has no counterpart here for {', '.join(unknown)}")
    return launch(func, np, *args, python=executable, env=env, **(kwargs or {}))
