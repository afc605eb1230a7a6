"""What the ranks run, written as in PyTorch's tutorials; pasted into a cell, or a file where a launcher needs one.

Nothing from outside is used here, so that the text of this module can stand anywhere. `group` is "env" where
the function makes the process group, "there" where the launcher has made it for this run, and "kept" where the
ranks live on and have had one since they were started: a new group of their own is the same work then.
Rank 1 is the one that fails; it writes the time (time.monotonic) to the file `mark` at that moment.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def joined(group):
    """The process group of this run, after a first all-reduce in it, and the sum of that."""
    if group == "env":
        dist.init_process_group("gloo")
    of_run = dist.new_group([0, 1], backend="gloo") if group == "kept" else None
    value = torch.ones(1)
    dist.all_reduce(value, group=of_run)
    return of_run, value


def all_reduce(group):
    of_run, value = joined(group)
    if group != "there":
        dist.destroy_process_group(of_run)
    if os.environ["RANK"] == "0":
        print(f"sum {value.item()}", flush=True)
    return value.item()


def training(group):
    """The same after a few steps of training, with as many threads as the process has."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(64, 3, 32, 32)).square().mean().backward()
        optimizer.step()
    return all_reduce(group)


def exception(group, mark):
    fail(group, mark, "exception")


def lost(group, mark):
    fail(group, mark, "lost")


def hang(group, mark):
    fail(group, mark, "hang")


def fail(group, mark, how):
    """Rank 0 waits for rank 1 in a collective, as in training, when that happens to rank 1."""
    of_run, value = joined(group)
    if os.environ["RANK"] == "1":
        with open(mark + ".new", "w") as file:
            file.write(str(time.monotonic()))
        os.rename(mark + ".new", mark)
        if how == "exception":
            raise RuntimeError("planted mistake")
        if how == "lost":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    dist.all_reduce(value, group=of_run)


def placed(rank, port, name, *arguments):
    """Run the function `name` with what torchrun would set, for launchers that leave it to their users."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place)
    return globals()[name](*arguments)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
