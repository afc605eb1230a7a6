"""A bare fork, the least that a launch can be: torch imported once, two children per line read, results by pipe.

Nothing of the kit is here: no cell's function travels, nothing is watched, labelled or stopped. The children meet
at a store on a socket that listens already, which is quicker than a file.
"""

import json
import os
import socket
import sys

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")  # as in the kit's ranks
os.environ["OMP_NUM_THREADS"] = "1"  # the parent of forks has to have one thread

import torch
import torch.distributed as dist


def child(rank, listener, answer):
    """One rank, from the fork to its end."""
    torch.set_num_threads(1)
    serves = {"is_master": True, "master_listen_fd": listener.fileno()} if rank == 0 else {}
    store = dist.TCPStore("127.0.0.1", listener.getsockname()[1], wait_for_workers=False, **serves)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.destroy_process_group()
    os.write(answer, json.dumps(value.item()).encode())


def launch():
    """The two ranks' values, once both have ended."""
    children = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for rank in range(2):
            theirs, answer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    child(rank, listener, answer)
                finally:
                    os._exit(0)
            os.close(answer)
            children.append((pid, theirs))
    values = []
    for pid, theirs in children:
        with open(theirs) as pipe:
            values.append(json.load(pipe))
        os.waitpid(pid, 0)
    return values


if __name__ == "__main__":
    for _ in sys.stdin:
        print(json.dumps(launch()), flush=True)
