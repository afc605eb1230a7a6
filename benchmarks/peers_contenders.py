"""The contenders: how a reader launches two ranks from a notebook with each of them.

Each is used as its own documentation says. The pins are those of the versions measured; environments come from
peers_envs, so none of them is a dependency of the kit.
"""

from dataclasses import dataclass
from pathlib import Path

RANKS = Path(__file__).with_name("peers_ranks.py")
SOURCE = RANKS.read_text(encoding="utf-8").partition("\n\nif __name__")[0] + "\n"
FILE = "%%writefile ranks.py\n" + RANKS.read_text(encoding="utf-8")
FREE_PORT = """
import socket

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
"""

# What is sent to a rank of nbdistributed that is still starting is lost, which is noticed after 30 s.
UNTIL_STARTED = """
def until_started(tries=60):
    manager = get_ipython().magics_manager.registry["DistributedMagic"]._comm_manager
    for _ in range(tries):
        try:
            return manager.send_to_all("get_status", {}, timeout=0.5)
        except TimeoutError:
            continue

until_started();
"""


@dataclass(frozen=True)
class Contender:
    """One launcher.

    Attributes:
        name: what it is called in the table.
        setup: the cells before the first launch.
        call: the cell that runs a function of peers_ranks on two ranks; `{fn}` is its name, `{args}` its arguments
            as a tuple's text without brackets, `{words}` the same for a command line.
        values: the cell that shows what the ranks returned, as the text [2.0, 2.0].
        later: what a launch after the first is.
        group: where the process group comes from, see peers_ranks.
        pins: requirements of its environment; () for the running one.
        package: whose version is told.
    """

    name: str
    setup: tuple
    call: str
    values: str
    later: str
    group: str = "env"
    pins: tuple = ()
    package: str = "torch"

    def cell(self, fn, *args):
        """The cell that runs `fn(group, *args)` on both ranks."""
        args = (self.group, *map(str, args))
        return self.call.format(fn=fn, args=", ".join(map(repr, args)), words=" ".join(args))


FRESH = "two fresh processes"
OURS = Contender(
    "launch", ("import helpers\n" + SOURCE,), "answer = helpers.launch({fn}, 2, {args})", "print(answer)",
    FRESH + " from the server",
)  # fmt: skip
PEERS = (
    Contender(
        "notebook_launcher", ("from accelerate import notebook_launcher\n" + SOURCE,),
        "answer = notebook_launcher({fn}, args=({args},), num_processes=2)", "print(answer)",
        "two forks of the kernel", pins=("accelerate==1.15.0",), package="accelerate",
    ),
    Contender(
        "torchrunx", ("import torchrunx\n" + SOURCE,),
        "answer = torchrunx.Launcher(workers_per_host=2, backend='gloo').run({fn}, {args})\n"
        "print('sum', answer.rank(0))",
        "print([answer.rank(k) for k in range(2)])",
        FRESH, group="there", pins=("torchrunx==0.4.0",), package="torchrunx",
    ),
    Contender(
        "ipyparallel",
        (
            "import ipyparallel\n" + FREE_PORT
            + "ranks = ipyparallel.Cluster(n=2).start_and_connect_sync()[:]\n"
            + f"ranks.execute({SOURCE!r}, block=True)\n"
            + "ranks.scatter('rank', range(2), flatten=True, block=True)\n"
            + "def run(port, name, *arguments):\n    return placed(rank, port, name, *arguments)\n",
        ),
        "answer = ranks.apply_sync(run, free_port(), '{fn}', {args})\nprint('sum', answer[0])", "print(answer)",
        "the function again in the same two processes", pins=("ipyparallel==9.2.0",), package="ipyparallel",
    ),
    Contender(
        "nbdistributed",
        ("%load_ext nbdistributed", "%dist_init -n 2", "%dist_mode -d", UNTIL_STARTED, "%%distributed\n" + SOURCE),
        "%%distributed\nanswer = {fn}({args})", "print(answer)",
        "the function again in the same two processes, in a new group of theirs",
        group="kept", pins=("nbdistributed==0.1.0",), package="nbdistributed",
    ),
    Contender(
        "spawn", (FILE, "import ranks, torch.multiprocessing\n" + FREE_PORT),
        "answer = torch.multiprocessing.spawn(ranks.placed, (free_port(), '{fn}', {args}), nprocs=2)",
        "print(answer)", FRESH,
    ),
    Contender(
        "torchrun", (FILE,),
        "!torchrun --standalone --nproc-per-node 2 ranks.py {fn} {words}", "print(answer)", FRESH,
    ),
)  # fmt: skip
