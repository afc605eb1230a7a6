"""What the benchmark of peers compares: each launcher as its own documentation says, in the version pinned here."""

from dataclasses import dataclass

# What the ranks run, pasted into a cell or written to a file. `group` is "env" where the function makes the process
# group, "there" where the launcher has made it for this launch, "kept" where ranks and group live on. Rank 1 is the
# one that fails; it writes the time to the file `mark` at that moment.
RANKS = """
import os, signal, sys, time
import torch
import torch.distributed as dist

def train():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        model(torch.randn(64, 3, 32, 32)).square().mean().backward()
        optimizer.step()

def work(group, what, mark=""):
    if what == "train":
        train()
    if group == "env":
        dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    if mark:
        if os.environ["RANK"] == "1":
            with open(mark + ".new", "w") as file:
                file.write(str(time.monotonic()))
            os.rename(mark + ".new", mark)
            if what == "exception":
                raise RuntimeError("planted mistake")
            if what == "lost":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        dist.all_reduce(torch.ones(1))  # rank 0 waits, as in training
    if group == "env":
        dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        print(f"sum {value.item()}", flush=True)
    return value.item()

def placed(rank, port, *arguments):  # for launchers that leave the rendezvous to their users
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return work(*arguments) if arguments else dist.init_process_group("gloo")
"""
FILE = f"%%writefile ranks.py\n{RANKS}\nif __name__ == '__main__':\n    work(*sys.argv[1:])\n"
FREE_PORT = """
import socket

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
"""
# What is sent to a rank of nbdistributed that is still starting is lost.
UNTIL_STARTED = """
manager = get_ipython().magics_manager.registry["DistributedMagic"]._comm_manager
for _ in range(240):
    try:
        manager.send_to_all("get_status", {}, timeout=0.5)
        break
    except TimeoutError:
        pass
"""
# The cell imports torch, so that the actors have it before they run: an `import torch` inside one fails in a kernel.
ACTORS = """
from monarch.actor import Actor, current_rank, endpoint, this_host

class Rank(Actor):
    def __init__(self, port):
        placed(current_rank().rank, port)

    @endpoint
    def run(self, *arguments):
        return work(*arguments)

ranks = this_host().spawn_procs(per_host={"gpus": 2}).spawn("ranks", Rank, free_port())
"""


@dataclass(frozen=True)
class Contender:
    """One launcher.

    Attributes:
        setup: the cells before the first launch.
        call: the cell that runs `work` on two ranks; `{args}` are its arguments as Python, `{words}` for a shell.
        values: the cell that shows what the ranks returned.
        group: where the process group comes from, see RANKS.
        pins: requirements of its environment; () for the running one. The first is the package whose version counts.
        served: whether every cell runs on all ranks, which a Jupyter server has to start.
    """

    name: str
    setup: tuple
    call: str
    values: str = "print(answer)"
    group: str = "env"
    pins: tuple = ()
    served: bool = False

    @property
    def fresh(self):
        """Whether each launch starts new processes."""
        return self.group != "kept"

    def cell(self, *args):
        args = (self.group, *map(str, args))
        return self.call.format(args=", ".join(map(repr, args)), words=" ".join(args))


OURS = (
    Contender("launch", ("import helpers\n" + RANKS,), "answer = helpers.launch(work, 2, {args})"),
    Contender(
        "ranks",
        ("import helpers\n" + RANKS, "ranks = helpers.ranks(2)"),
        "answer = ranks(work, {args})",
        group="kept",
    ),
)
PEERS = (
    Contender(
        "notebook_launcher",
        ("from accelerate import notebook_launcher\n" + RANKS,),
        "answer = notebook_launcher(work, args=({args},), num_processes=2)",
        pins=("accelerate==1.15.0",),
    ),
    Contender(
        "torchrunx",
        ("import torchrunx\n" + RANKS,),
        "answer = torchrunx.Launcher(workers_per_host=2, backend='gloo').run(work, {args})\n"
        "print('sum', answer.rank(0))",
        "print([answer.rank(k) for k in range(2)])",
        group="there",
        pins=("torchrunx==0.4.0",),
    ),
    Contender(
        "ipyparallel",
        (
            "import ipyparallel\n" + FREE_PORT + "ranks = ipyparallel.Cluster(n=2).start_and_connect_sync()[:]\n"
            f"ranks.execute({RANKS!r}, block=True)\nranks.scatter('rank', range(2), flatten=True, block=True)\n"
            "ranks.push(dict(port=free_port()), block=True)\nranks.execute('placed(rank, port)', block=True)\n"
            "def run(*arguments):\n    return work(*arguments)\n",
        ),
        "answer = ranks.apply_sync(run, {args})\nprint('sum', answer[0])",
        group="kept",
        pins=("ipyparallel==9.2.0",),
    ),
    Contender(
        "nbdistributed",
        ("%load_ext nbdistributed", "%dist_init -n 2", "%dist_mode -d", UNTIL_STARTED, "%%distributed\n" + RANKS),
        "%%distributed\nanswer = work({args})",
        group="kept",
        pins=("nbdistributed==0.1.0",),
    ),
    Contender(
        "jupyter-distributed",
        (RANKS, "dist.init_process_group('gloo')"),
        "answer = work({args})",
        group="kept",
        pins=("jupyter-distributed==0.1.1",),
        served=True,
    ),
    Contender(
        "monarch",
        (FREE_PORT + RANKS + ACTORS,),
        "answer = [value for _, value in ranks.run.call({args}).get()]\nprint('sum', answer[0])",
        group="kept",
        pins=("torchmonarch==0.7.0",),
    ),
    Contender(
        "spawn",
        (FILE, "import ranks, torch.multiprocessing\n" + FREE_PORT),
        "answer = torch.multiprocessing.spawn(ranks.placed, (free_port(), {args}), nprocs=2)",
    ),
    Contender("torchrun", (FILE,), "!torchrun --standalone --nproc-per-node 2 ranks.py {words}"),
)
