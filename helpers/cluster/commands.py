"""What to type to run `python -m helpers train` on several hosts: for torchrun, for mpirun, for Slurm's sbatch.

    print(commands.commands("--model resnet8", nnodes=2, nproc_per_node=8, hosts=["a", "b"])["torchrun"])

Nothing is started here: the programs that start ranks on hosts are PyTorch's, Open MPI's and Slurm's own. Their
options: pytorch.org/docs/stable/elastic/run.html, `man mpirun` of Open MPI 4, slurm.schedmd.com/sbatch.html.
"""

import argparse
import os
import re
import secrets
import shlex
import sys
from dataclasses import dataclass

from ..config import SETTINGS, STRATEGIES, RunConfig
from ..settings import add_options, chosen, hyphens

FORMATS = ("torchrun", "mpirun", "sbatch")
PASSED = (  # of the caller's environment, where set
    *("HELPERS_DATA", "HELPERS_RESULTS", "HELPERS_CACHE", "HELPERS_DEVICE", "HELPERS_TIMEOUT", "PYTHONPATH"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"  # of a host, or its IPv4 address


def commands(
    train="",
    *,
    nnodes,
    nproc_per_node,
    hosts=None,
    rdzv_endpoint=None,
    rdzv_id=None,
    max_restarts=0,
    timeout=None,
    interface=None,
    time=None,
    python=None,
    folder=None,
    environment=None,
):
    """The texts to paste: {name of FORMATS: text}.

    Args:
        train: options of `python -m helpers train`, as a list or as one would type them; the word `train` may
            stand before them.
        nnodes, nproc_per_node: how many hosts, and ranks (devices) on each.
        hosts: their names or addresses (default: host0, host1, … to be replaced).
        rdzv_endpoint: "HOST:PORT" where the hosts meet (default: the first host, port 29400; 29500 for mpirun).
        rdzv_id: the name of the run, equal on all hosts and different for each run (default: a random one).
        max_restarts: how often torchrun restarts all ranks after a rank or a host was lost.
        timeout: seconds that a collective may take, after which a silent host counts as lost (default: 1800).
        interface: the network interface that joins the hosts, such as "eth0" (default: Gloo and NCCL choose).
        time: the limit of the Slurm job.
        python, folder: interpreter and folder on the hosts (default: this one, and the current; "" for no `cd`).
        environment: variables for the ranks (default: those named in PASSED that are set here).

    Raises:
        ValueError, TypeError: a setting is impossible, or `train` would refuse its options.
    """
    words, config = _train_options(train, nnodes, nproc_per_node)
    names = _host_names(hosts, nnodes)
    if rdzv_endpoint and not re.fullmatch(rf"{NAME}:\d+", rdzv_endpoint):
        raise ValueError(f"rdzv_endpoint is {rdzv_endpoint!r}; give HOST:PORT, such as node0:29400")
    environment = {k: os.environ[k] for k in PASSED if os.environ.get(k)} if environment is None else {**environment}
    environment.setdefault("OMP_NUM_THREADS", str(config.threads or 1))
    if timeout:
        environment["HELPERS_TIMEOUT"] = str(timeout)
    if interface:
        environment.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    folder = os.getcwd() if folder is None else str(folder)
    python = shlex.quote(str(python or sys.executable))
    notes = ["# First: the same folder, environment, code and prepared data on all hosts, under the same paths."]
    if hosts is None:
        notes.append("# Put your hosts' names in place of host0, … (or give them: --hosts a,b,…).")
    if not interface:
        notes.append(
            "# If ranks do not reach each other, name the network interface (`ip -brief addr`): --interface NAME"
        )
    job = Job(
        config, names, rdzv_endpoint, python, folder, environment, shlex.join(words), notes, max_restarts, timeout
    )
    run = shlex.quote(rdzv_id or f"helpers-{secrets.token_hex(4)}")
    made = _torchrun(job, run), _mpirun(job), _sbatch(job, time)
    return dict(zip(FORMATS, ("\n".join(lines) + "\n" for lines in made), strict=True))


@dataclass
class Job:
    """What all three commands share; `python` and `train` are quoted for a shell."""

    config: RunConfig
    hosts: list
    endpoint: str | None
    python: str
    folder: str
    environment: dict
    train: str
    notes: list
    restarts: int
    timeout: int | None

    @property
    def assignments(self):
        """The environment as words for a shell."""
        return [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]

    @property
    def restart_notes(self):
        if not self.restarts:
            return []
        if not self.config.checkpoint_dir:
            return ["# A restart begins anew, for nothing is saved: add --checkpoint-dir."]
        return [
            f"# After a loss all ranks start anew from the newest checkpoint, {self.restarts} time(s) at most; a host "
            f"that falls silent counts as lost after {self.timeout or 1800} s (--timeout)."
        ]

    def agent(self, endpoint, run):
        """The command of an agent, up to the words of the training."""
        return (
            f"{self.python} -m helpers.cluster.torchrun --nnodes={self.config.nnodes} "
            f"--nproc-per-node={self.config.nproc_per_node} --max-restarts={self.restarts} --rdzv-backend=c10d "
            f"--rdzv-endpoint={endpoint} --rdzv-id={run}"
        )


def _torchrun(job, run):
    endpoint = job.endpoint or f"{job.hosts[0]}:29400"
    where = f"cd {shlex.quote(job.folder)} && " if job.folder else ""
    lines = [
        "# torchrun: one agent a host. Start the commands within 600 s of each other.",
        *job.notes,
        *job.restart_notes,
        f"# The agents meet at {endpoint}: `nc -vz {endpoint.replace(':', ' ')}` from the others tests the port.",
        f"# Rank 0, which writes the record, runs on {min(job.hosts)}.",  # torchrun numbers its hosts by name
        "# helpers.cluster.torchrun is torchrun, and names the hosts that came.",
    ]
    for name in job.hosts:
        command = " ".join([*job.assignments, job.agent(endpoint, run), f"--local-addr={name}"])
        lines += [f"# on {name}:", f"{where}{command} -m helpers {job.train}"]
    return lines


def _mpirun(job):
    host, port = (job.endpoint or f"{job.hosts[0]}:29500").split(":")
    each, where = job.config.nproc_per_node, f" --wdir {shlex.quote(job.folder)}" if job.folder else ""
    passed = {**job.environment, "MASTER_ADDR": host, "MASTER_PORT": port}
    variables = " ".join(f"-x {shlex.quote(f'{name}={value}')}" for name, value in passed.items())
    return [
        f"# mpirun (Open MPI): started on {job.hosts[0]}, which reaches the others by ssh without a password.",
        *job.notes,
        "# Each -x gives the ranks a variable: ssh passes none on. Without --bind-to none a rank keeps to one core.",
        "# mpirun starts nothing anew: after a loss, give the command again with --resume.",
        "cat > hostfile <<'END'",
        *(f"{name} slots={each}" for name in job.hosts),
        "END",
        f"mpirun -np {job.config.devices} -npernode {each} -hostfile hostfile --bind-to none{where} {variables} "
        f"{job.python} -m helpers {job.train}",
    ]


def _sbatch(job, time):
    config = job.config
    workers = config.num_workers if config.input_path == "workers" else 0
    options = ["job-name=helpers", f"nodes={config.nnodes}", "ntasks-per-node=1"]
    options += [f"cpus-per-task={config.nproc_per_node * ((config.threads or 1) + workers)}"]
    options += [f"gpus-per-node={config.nproc_per_node}"] * (config.device != "cpu")
    options += [f"time={time}"] * bool(time)
    agent = job.agent(job.endpoint or '"$first:$port"', '"$SLURM_JOB_ID"')
    first = [
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "port=$((20000 + SLURM_JOB_ID % 10000))  # jobs that share a host do not share a port",
    ]
    return [
        "#!/bin/bash",
        *(f"#SBATCH --{option}" for option in options),
        "# Save as train.sbatch, then: sbatch train.sbatch",
        *job.notes,
        *job.restart_notes,
        "set -e",
        *([f"cd {shlex.quote(job.folder)}"] if job.folder else []),
        *(f"export {assignment}" for assignment in job.assignments),
        *([] if job.endpoint else first),
        f"srun {agent} -m helpers {job.train}",
    ]


class _TrainOptions(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"train would refuse these options: {message}")


def _train_options(train, nnodes, nproc_per_node):
    """`train` and its options as a list, and the RunConfig that they make; what `train` refuses is refused here."""
    words = shlex.split(train) if isinstance(train, str) else [str(word) for word in train]
    words = words[1:] if words[:1] == ["train"] else words
    parser = _TrainOptions(add_help=False, allow_abbrev=False)
    add_options(parser, "train", SETTINGS)
    settings = {"strategy": "ddp", **chosen(parser.parse_args(map(hyphens, words)), SETTINGS)}
    for name, hosts in (("nproc_per_node", nproc_per_node), ("nnodes", nnodes)):
        if settings.setdefault(name, hosts) != hosts:
            raise ValueError(f"train is given --{name.replace('_', '-')} {settings[name]}, hosts {hosts}")
    config = RunConfig(**settings)
    if config.compiler == "xla":
        raise ValueError("--compiler-opt=xla trains in an environment of its own on one host; leave it out")
    if not STRATEGIES[config.strategy].ranks:
        raise ValueError(f"strategy {config.strategy!r} stays in one process; choose 'ddp', or leave it out")
    return ["train", *words], config


def _host_names(hosts, nnodes):
    names = [f"host{n}" for n in range(nnodes)] if hosts is None else hosts
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    wrong = [name for name in names if not re.fullmatch(NAME, name) or names.count(name) > 1]
    if wrong or len(names) != nnodes:
        raise ValueError(f"hosts are {', '.join(names)}; give {nnodes} different names or addresses, one for each host")
    return names


def add_to(subcommands):
    """Add the command `cluster` to the command line."""
    about = "Print what to type to run `train` on several hosts: the words after -- are train's."
    sub = subcommands.add_parser("cluster", help=about, description=about, allow_abbrev=False)
    sub.set_defaults(command=_command)
    for name in ("nnodes", "nproc_per_node"):
        sub.add_argument(f"--{name.replace('_', '-')}", type=int, required=True, help=SETTINGS[name].help)
    sub.add_argument("--format", choices=FORMATS, help="only this one (default: all three)")
    sub.add_argument("--hosts", help="their names, a,b,c")
    sub.add_argument("--rdzv-endpoint", help="HOST:PORT where they meet (default: the first host, 29400)")
    sub.add_argument("--rdzv-id", help="the run's name (default: a random one)")
    sub.add_argument("--max-restarts", type=int, default=0, help="restarts after a loss (torchrun and sbatch)")
    sub.add_argument("--timeout", type=int, help="seconds after which a silent host counts as lost (default: 1800)")
    sub.add_argument("--interface", help="network interface between the hosts")
    sub.add_argument("--time", help="Slurm's limit, such as 2:00:00")
    sub.add_argument("train", nargs="*", metavar="-- train …", help="train and its options")


def _command(options):
    settings = {name: value for name, value in vars(options).items() if name not in ("command", "format")}
    texts = commands(**settings)
    print("\n".join(text for name, text in texts.items() if options.format in (None, name)), end="")
