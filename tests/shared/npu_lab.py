"""A place to run variants of a migrated script on emulated cards in a few seconds each.

A variant runs in a rank of the kit, which has imported PyTorch already, and torchvision's resnet18 becomes a tiny
net. Otherwise nothing is changed: the variant is the program that runs, with the command line it was given, and starts
its processes itself. Every process then tells what it did. Notebook 07 starts scripts as a user does.
"""

import contextlib
import json
import os
import random
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import helpers

CARDS = 4
TIMEOUT = 300.0  # s of one run
OF_A_LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
OF_A_LAUNCHER += ("TORCHELASTIC_USE_AGENT_STORE",)


@dataclass
class Run:
    """What a variant did.

    Attributes:
        error: the exceptions that ended it, a line "RuntimeError: …" for each process; "" if it ended well.
        output: all that it printed.
        processes: for every process that trained, by rank: what platforms.npu.counts tells, and
            world_size, backend, address ("host:port" where it met the others), loaders (settings of
            each DataLoader), batches (sizes of the training batches), parameters (["npu:1"]: where those of the
            optimizer are), weights (sum of their absolute
            values in the end), amp_calls (settings given to amp.initialize).
        folder: where it ran, with what it saved.
        arguments: its command line.
    """

    error: str
    output: str
    processes: list
    folder: Path
    arguments: list


class Lab:
    """`with Lab(folder) as lab: lab.run(source, arguments)`; runs leave their files in `folder`/1, 2, …"""

    def __init__(self, folder):
        self.folder, self.count = Path(folder), 0

    def run(self, source, arguments, **environment) -> Run:
        """Run the program `source`."""
        self.count += 1
        folder, arguments = self.folder / str(self.count), list(map(str, arguments))
        folder.mkdir(parents=True)
        (folder / "main.py").write_text(source)
        own, env = {name: str(value) for name, value in environment.items()}, {"HELPERS_NPU_DEVICES": str(CARDS)}
        errors = []
        try:
            helpers.launch(work, 1, folder, arguments, own, env=env, threads=1, timeout=TIMEOUT)
        except helpers.RankTimeout as error:
            errors = [f"TimeoutError: {error}"]
        except helpers.RankError:  # what ended the processes is in their files
            pass
        errors += [path.read_text() for path in sorted(folder.glob("error-*.txt"))]
        processes = [json.loads(path.read_text()) for path in sorted(folder.glob("process-*.json"))]
        return Run("\n".join(errors), (folder / "output.txt").read_text(), processes, folder, arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def images(folder, training, validation):
    """A folder like ImageNet's. Each picture has one colour, which no crop or flip changes: runs can be compared."""
    from PIL import Image

    for split, count in (("train", training), ("val", validation)):
        for number in range(count):
            colour = [(37 * number) % 97] * 3
            colour[number % 3] = 160 + (53 * number) % 90
            path = folder / split / f"class{number % 3}" / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), tuple(colour)).save(path)
    return folder


def free_port() -> int:
    """One that the system gives to nobody who lets it choose, so that it is still free when a script binds it."""
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def work(folder, arguments, environment):
    """One run, in a rank."""
    import torch
    import torch.multiprocessing as mp

    import platforms.npu

    platforms.npu.load()
    torch.manual_seed(0)  # for all runs
    for name in OF_A_LAUNCHER:
        os.environ.pop(name, None)
    os.environ.update(environment)
    os.chdir(folder)
    output = os.open("output.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
    sys.argv = ["main.py", *arguments]
    spy = Spy()
    spy.install()
    mp.spawn = lambda fn, args=(), nprocs=1, **_: mp.start_processes(Worker(fn, spy), args, nprocs, start_method="fork")

    def program(_):
        exec(compile(Path("main.py").read_text(), "main.py", "exec"), {"__name__": "__main__"})

    Worker(program, spy)(None)


class Worker:
    """Calls the function of a process and leaves what it did, or the error that ended it, in a file."""

    def __init__(self, function, spy):
        self.function, self.spy = function, spy

    def __call__(self, number, *args):
        import torch
        from torch.multiprocessing import ProcessRaisedException

        torch.set_num_threads(1)  # makes the forked pool anew, for which the threads of four cards would race
        try:
            self.function(number, *args)
        except BaseException as error:
            traceback.print_exc()
            if not isinstance(error, ProcessRaisedException):  # that one has told it itself
                Path(f"error-{os.getpid()}.txt").write_text(f"{type(error).__name__}: {error}")
            raise
        if self.spy.optimizer is not None:
            facts = self.spy.facts()
            Path(f"process-{facts['rank'] or 0}.json").write_text(json.dumps(facts))


class Spy:
    """Looks on from inside while a process trains."""

    def __init__(self):
        self.optimizer = None
        self.loaders, self.batches, self.amp_calls = [], [], []

    def install(self):
        import torch
        import torchvision.models
        from apex import amp

        spy, Loader = self, torch.utils.data.DataLoader
        initialize, construct = amp.initialize, torch.optim.Optimizer.__init__

        class DataLoader(Loader):
            def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, num_workers=0, **settings):
                spy.loaders.append({"batch_size": batch_size, "workers": num_workers, **settings})
                super().__init__(dataset, batch_size, shuffle, sampler, num_workers=0, **settings)

        def spied_construct(optimizer, *args, **settings):
            construct(optimizer, *args, **settings)
            spy.optimizer = optimizer

        def spied_initialize(*args, **settings):
            spy.amp_calls.append(settings)
            return initialize(*args, **settings)

        torch.utils.data.DataLoader, amp.initialize = DataLoader, spied_initialize
        torch.optim.Optimizer.__init__ = spied_construct
        torchvision.models.__dict__["resnet18"] = lambda **_: tiny_net(self.batches)

    def facts(self):
        import torch.distributed as dist

        from platforms.npu import counts

        facts = counts.of_process()
        together = dist.is_initialized()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        facts.update(
            world_size=dist.get_world_size() if together else 1,
            backend=dist.get_backend() if together else None,
            address=address() if together else None,
            parameters=sorted({str(p.device) for p in parameters}),
            weights=sum(p.detach().cpu().double().abs().sum().item() for p in parameters),
            loaders=self.loaders,
            batches=self.batches,
            amp_calls=self.amp_calls,
        )
        return facts


def address():
    """Where the processes of this one's group have met."""
    from torch.distributed import PrefixStore, distributed_c10d

    store = distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return f"{store.host}:{store.port}"


def tiny_net(batches):
    """A net with BatchNorm for pictures of any size, with classes enough for Acc@5; notes its training batches.

    Its features are large: float16 gradients overflow at the first loss scales that amp tries.
    """
    from torch import nn

    class Net(nn.Sequential):
        def forward(self, images):
            if self.training:
                batches.append(len(images))
            return super().forward(images)

    class Louder(nn.Module):
        def forward(self, features):
            return 16 * features

    first, second = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.Conv2d(8, 16, 3, 2, 1, bias=False)
    layers = [first, nn.BatchNorm2d(8), nn.ReLU(), second, nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return Net(*layers, Louder(), nn.Flatten(), nn.Linear(16, 10))
