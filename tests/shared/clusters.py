"""Clusters on this machine: a Slurm with two node daemons on loopback."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from importlib.util import find_spec
from unittest.mock import patch

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
REASONS = {
    "submitit is not installed": find_spec("submitit") is None,
    "needs root": os.geteuid() != 0,
    "Slurm is not installed (apt-get install slurm-wlm munge)": not all(map(shutil.which, PROGRAMS)),
}
MISSING = {"slurm": next((why for why, holds in REASONS.items() if holds), "")}  # why there is none, "" if there can be
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={port}
ReturnToService=2
MpiDefault=none
OverTimeLimit=0
KillWait=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES State=UP MaxTime=60
PartitionName=closed Nodes=n1 State=DOWN MaxTime=60
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def slurm(folder):
    """SLURM_CONF is that of the cluster while the block lasts; its files are in `folder`."""
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    host, (port, first, second) = socket.gethostname(), free_ports(3)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, port=port, first=first, second=second))
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    files = {"key-file": "key", "socket": "munge.socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    commands = [["munged", "--foreground", "--force", *options], ["slurmctld", "-D", "-c"]]
    commands += [["slurmd", "-D", "-N", name] for name in ("n1", "n2")]
    processes = []
    with patch.dict(os.environ, SLURM_CONF=str(conf)):
        for command in commands:
            with open(folder / f"{len(processes)}.out", "w") as out:
                processes.append(subprocess.Popen(command, stdout=out, stderr=out))
            time.sleep(1)
        try:
            end = time.monotonic() + 60
            while "idle" not in (said := ask("sinfo", "--noheader", "--partition=all", "--format=%T")):
                assert time.monotonic() < end, said
                time.sleep(0.5)
            yield
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(60)


def ask(*command):
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
