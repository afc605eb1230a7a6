"""What to type to run `python -m helpers train` on several hosts: for torchrun, for mpirun, for Slurm's sbatch.

    print(hosts.commands("--model resnet8 --epochs 10", nnodes=2, nproc_per_node=8, hosts=["a", "b"])["torchrun"])

Nothing is started here: the programs that start ranks on hosts are PyTorch's, Open MPI's and Slurm's own. Their
options: pytorch.org/docs/stable/elastic/run.html, `man mpirun` of Open MPI 4, slurm.schedmd.com/sbatch.html.
"""

import argparse
import os
import re
import secrets
import shlex
import sys

from ..config import SETTINGS, STRATEGIES, RunConfig
from ..settings import add_options, chosen, hyphens

FORMATS = ("torchrun", "mpirun", "sbatch")
PASSED = (  # of the caller's environment, where set
    "HELPERS_DATA",
    "HELPERS_RESULTS",
    "HELPERS_CACHE",
    "HELPERS_DEVICE",
    "HELPERS_TIMEOUT",
    "PYTHONPATH",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"  # of a host, or its IPv4 address
TIMES = r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}"  # as sbatch reads them


def commands(
    train="",
    *,
    nnodes,
    nproc_per_node,
    hosts=None,
    rdzv_endpoint=None,
    rdzv_id=None,
    max_restarts=0,
    wait=None,
    timeout=None,
    interface=None,
    partition=None,
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
        wait: seconds that a host waits for the others (default: torchrun's 600).
        timeout: seconds that a collective may take, after which a silent host counts as lost (default: 1800).
        interface: the network interface that joins the hosts, such as "eth0" (default: Gloo and NCCL choose).
        partition, time: of the Slurm job.
        python, folder: interpreter and folder on the hosts (default: this one, and the current; "" for no `cd`).
        environment: variables for the ranks (default: those named in PASSED that are set here).

    Raises:
        ValueError, TypeError: a setting is impossible, or `train` would refuse its options.
    """
    for name, value, pattern in (  # what a shell would not read as one word
        ("interface", interface, r"[\w.:-]{1,15}"),
        ("partition", partition, r"[\w.,-]+"),
        ("time", time, TIMES),
    ):
        if value is not None:
            _plain(name, value, pattern)
    job = Job(nnodes, nproc_per_node, hosts, rdzv_endpoint, max_restarts, wait, timeout, interface)
    options, job.config = _train_options(train, nnodes, nproc_per_node)
    job.training = ["-m", "helpers", "train", *options]
    job.id = _plain("rdzv_id", rdzv_id or f"helpers-{secrets.token_hex(4)}", r"[\w.-]+")
    job.python = sys.executable if python is None else python
    job.folder = os.getcwd() if folder is None else folder
    job.environment = job.variables(environment)
    return {"torchrun": _torchrun(job), "mpirun": _mpirun(job), "sbatch": _sbatch(job, partition, time)}


class Job:
    """The settings that all three commands share."""

    def __init__(self, nnodes, nproc_per_node, hosts, endpoint, max_restarts, wait, timeout, interface):
        self.nnodes, self.nproc, self.restarts = nnodes, nproc_per_node, max_restarts
        self.wait, self.timeout, self.interface = wait, timeout, interface
        for name, value, least in (
            ("nnodes", nnodes, 1),
            ("nproc_per_node", nproc_per_node, 1),
            ("max_restarts", max_restarts, 0),
            ("wait", wait, 1),
            ("timeout", timeout, 1),
        ):
            if value is None and name in ("wait", "timeout"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name!s} is {value!r}; it must be a whole number, {least} or more")
        self.named = hosts is not None
        self.hosts = [f"host{n}" for n in range(nnodes)] if hosts is None else _host_names(hosts, nnodes)
        self.endpoint = _endpoint(endpoint) if endpoint else None

    def variables(self, environment):
        """The variables that ranks need."""
        chosen = {name: os.environ[name] for name in PASSED if os.environ.get(name)}
        chosen = dict(chosen if environment is None else environment)
        for name, value in chosen.items():
            _plain("a variable's name", name, r"[A-Za-z_]\w*")
            if not isinstance(value, str) or "\n" in value or "\0" in value:
                raise ValueError(f"the variable {name!s} is {value!r}; it must be text of one line")
        chosen.setdefault("OMP_NUM_THREADS", str(self.config.threads or 1))
        if self.timeout:
            chosen["HELPERS_TIMEOUT"] = str(self.timeout)
        if self.interface:
            chosen.update(GLOO_SOCKET_IFNAME=self.interface, NCCL_SOCKET_IFNAME=self.interface)
        return chosen

    def torchrun(self, endpoint, name):
        """The agent's words before those of the training. `endpoint` and `name` are for a shell to read."""
        words = [shlex.quote(str(self.python)), "-m", "helpers.cluster.torchrun"]
        words += [f"--nnodes={self.nnodes}", f"--nproc-per-node={self.nproc}", f"--max-restarts={self.restarts}"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={name}"]
        return words + ([f"--rdzv-conf=join_timeout={self.wait}"] if self.wait else [])


def _torchrun(job):
    host, port = job.endpoint or (job.hosts[0], 29400)
    before = [f"{name}={shlex.quote(value)}" for name, value in job.environment.items()]
    where = f"cd {shlex.quote(str(job.folder))} && " if job.folder else ""
    first = min(job.hosts)  # torchrun numbers its hosts by name
    lines = [
        f"# torchrun: one agent a host, {job.nnodes} × {job.nproc} ranks. Start the commands within "
        f"{job.wait or 600} s of each other.",
        *_first_things(job),
        f"# The agents meet at {host}, port {port}: `nc -vz {host} {port}` from the others once its agent runs.",
        f"# Rank 0, which writes the record, runs on {first}. helpers.cluster.torchrun is torchrun and names who came.",
        *_restart_note(job),
    ]
    for name in job.hosts:
        words = [*before, *job.torchrun(f"{host}:{port}", job.id), f"--local-addr={name}"]
        lines += [f"# on {name}:", where + " ".join(words) + " " + shlex.join(job.training)]
    return "\n".join(lines) + "\n"


def _mpirun(job):
    host, port = job.endpoint or (job.hosts[0], 29500)
    words = ["mpirun", "-np", str(job.nnodes * job.nproc), "-npernode", str(job.nproc), "-hostfile", "hostfile"]
    words += ["--bind-to", "none"] + (["--wdir", str(job.folder)] if job.folder else [])
    for name, value in {**job.environment, "MASTER_ADDR": host, "MASTER_PORT": str(port)}.items():
        words += ["-x", f"{name}={value}"]
    return (
        "\n".join(
            [
                f"# mpirun (Open MPI): {job.nnodes} × {job.nproc} ranks, started from {job.hosts[0]}, which "
                f"reaches the "
                "others by ssh without a password.",
                *_first_things(job),
                "# Each -x gives the ranks a variable: ssh passes none on. Without --bind-to none a rank keeps "
                "to one core.",
                "# mpirun starts nothing anew: after a loss, give the command again with --resume.",
                "cat > hostfile <<'END'",
                *(f"{name} slots={job.nproc}" for name in job.hosts),
                "END",
                shlex.join([*words, str(job.python), *job.training]),
            ]
        )
        + "\n"
    )


def _sbatch(job, partition, time):
    config = job.config
    cores = job.nproc * ((config.threads or 1) + (config.num_workers if config.input_path == "workers" else 0))
    options = [f"nodes={job.nnodes}", "ntasks-per-node=1", f"cpus-per-task={cores}"]
    options += [f"gpus-per-node={job.nproc}"] * (config.device != "cpu")
    options += [f"partition={partition}"] * bool(partition) + [f"time={time}"] * bool(time)
    endpoint = "{}:{}".format(*job.endpoint) if job.endpoint else '"$first:$port"'
    run = [*job.torchrun(endpoint, '"$SLURM_JOB_ID"')]
    return (
        "\n".join(
            [
                "#!/bin/bash",
                "#SBATCH --job-name=helpers",
                *(f"#SBATCH --{option}" for option in options),
                "# Save as train.sbatch, then: sbatch train.sbatch",
                *_first_things(job, hosts=False),
                *_restart_note(job),
                "set -e",
                *([f"cd {shlex.quote(str(job.folder))}"] if job.folder else []),
                *(f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()),
                *(
                    []
                    if job.endpoint
                    else [
                        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
                        "port=$((20000 + SLURM_JOB_ID % 10000))  # jobs that share a host do not share a port",
                    ]
                ),
                "srun " + " ".join(run) + " " + shlex.join(job.training),
            ]
        )
        + "\n"
    )


def _first_things(job, hosts=True):
    lines = ["# First: the same folder, environment, code and prepared data on all hosts, under the same paths."]
    if hosts and not job.named:
        lines.append(f"# Put your hosts' names in place of {job.hosts[0]}, … (or give them: --hosts a,b,…).")
    if not job.interface:
        lines.append(
            "# If ranks find no way to each other, name the network interface between the hosts (`ip -brief addr`): "
            "--interface NAME sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
        )
    return lines


def _restart_note(job):
    if not job.restarts:
        return []
    if not job.config.checkpoint_every:
        return ["# A restart begins anew, for nothing is saved: add --checkpoint-dir and --checkpoint-every."]
    silent = f"{job.timeout or 1800} s"
    return [
        f"# After a loss all ranks start anew from the newest checkpoint, {job.restarts} time(s) at most; a host that "
        f"falls silent counts as lost after {silent} (--timeout)."
    ]


class _TrainOptions(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"train would refuse these options: {message}")


def _train_options(train, nnodes, nproc_per_node):
    """The options of `train` as a list, and the RunConfig that they make; what `train` refuses is refused here."""
    words = shlex.split(train) if isinstance(train, str) else [str(word) for word in train]
    words = words[1:] if words[:1] == ["train"] else words
    if any("\n" in word or "\0" in word for word in words):
        raise ValueError("an option of train has more than one line")
    parser = _TrainOptions(add_help=False, allow_abbrev=False)
    add_options(parser, "train", SETTINGS)
    settings = {"strategy": "ddp", **chosen(parser.parse_args(map(hyphens, words)), SETTINGS)}
    if settings.setdefault("nproc_per_node", nproc_per_node) != nproc_per_node:
        raise ValueError(f"train is given --nproc-per-node {settings['nproc_per_node']}, hosts {nproc_per_node}")
    config = RunConfig(**settings, nnodes=nnodes)
    if config.compiler == "xla":
        raise ValueError("--compiler-opt=xla trains in an environment of its own on one host; leave it out")
    if not STRATEGIES[config.strategy].ranks:
        raise ValueError(f"strategy {config.strategy!r} stays in one process; choose 'ddp', or leave it out")
    return words, config


def _host_names(hosts, nnodes):
    names = [name.strip() for name in hosts.split(",")] if isinstance(hosts, str) else list(hosts)
    for name in names:
        _plain("a host's name", name, NAME)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is named twice among the hosts")
    if len(names) != nnodes:
        raise ValueError(f"{len(names)} host(s) named ({', '.join(names)}), but nnodes is {nnodes}")
    return names


def _endpoint(text):
    found = re.fullmatch(rf"({NAME}):(\d+)", text) if isinstance(text, str) else None
    if not found or not 0 < int(found[2]) < 65536:
        raise ValueError(f"rdzv_endpoint is {text!r}; give HOST:PORT, say node0:29400, with a port from 1 to 65535")
    return found[1], int(found[2])


def _plain(name, value, pattern):
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValueError(f"{name!s} is {value!r}; it must look like {pattern}")
    return value


def add_to(subcommands):
    """Add the command `hosts` to the command line."""
    about = "Print what to type to run `train` on several hosts: the words after -- are train's."
    sub = subcommands.add_parser("cluster", help=about, description=about, allow_abbrev=False)
    sub.set_defaults(command=_command)
    for name in ("nnodes", "nproc_per_node"):
        SETTINGS[name].add_option(sub, required=True)
    sub.add_argument("--format", choices=FORMATS, help="only this one (default: all three)")
    sub.add_argument("--hosts", help="their names, a,b,c")
    sub.add_argument("--rdzv-endpoint", help="HOST:PORT where they meet (default: the first host, 29400)")
    sub.add_argument("--rdzv-id", help="the run's name (default: a random one)")
    sub.add_argument("--max-restarts", type=int, default=0, help="restarts after a loss (torchrun and sbatch)")
    sub.add_argument("--wait", type=int, help="seconds that a host waits for the others (default: 600)")
    sub.add_argument("--timeout", type=int, help="seconds after which a silent host counts as lost (default: 1800)")
    sub.add_argument("--interface", help="network interface between the hosts")
    sub.add_argument("--partition", help="Slurm's partition")
    sub.add_argument("--time", help="Slurm's limit, such as 2:00:00")
    sub.add_argument("train", nargs="*", metavar="-- train …", help="train and its options")


def _command(options):
    settings = {name: value for name, value in vars(options).items() if name not in ("command", "format")}
    texts = commands(**settings)
    print("\n".join(text for name, text in texts.items() if options.format in (None, name)), end="")
