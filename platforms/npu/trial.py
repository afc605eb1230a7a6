"""Runs a text of the ImageNet script on the kit's ranks, which have imported PyTorch already, and says what it did.

The ranks stand in for the processes that the script would spawn; all else is the script's own. `python main.py` and
`python -m platforms.npu main.py` do the same in some seconds more.
"""

import contextlib
import functools
import io
import os
import re
import socket
import sys
import types
import warnings
from pathlib import Path

SMALL = tuple("-a shufflenet_v2_x0_5 --image-size 32 -b 16 -j 0 -p 1 --lr 0.01 --epochs 1 --seed 0".split())
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def images(folder) -> Path:
    """`folder` with 42 small images to train on and 21 to validate with, of three classes."""
    from PIL import Image

    from helpers.data import sets

    sets.ensure("digits")
    digits, folder = sets.load("digits", "train"), Path(folder)
    for split, first, count in (("train", 0, 14), ("val", 14, 7)):
        for label in range(3):
            place = folder / split / str(label)
            place.mkdir(parents=True)
            for number in (digits.labels == label).nonzero().flatten().tolist()[first : first + count]:
                Image.fromarray(digits.images[number].permute(1, 2, 0).numpy()).save(place / f"{number}.png")
    return folder


def run(source, options, folder, *, ranks=2, cards=2, torchrun=False) -> dict:
    """Run the text `source` as `python main.py OPTIONS .` in `folder`, a process on each of `ranks` ranks.

    With `torchrun` the script finds what torchrun tells its processes; else it starts them itself.

    Returns:
        error: "" or the exception that ended it. processes: of each rank, if it ended well: cards {card: operators},
        losses (training), validated (images behind the accuracy), said (lines without times), and what
        platforms.npu.counts tells.
    """
    from helpers.launcher.launch import RankError, launch
    from platforms import npu

    env = npu.environment(devices=cards) | {"HELPERS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    given = torchrun, source.replace("23456", str(_free_port())), [str(option) for option in options], str(folder)
    try:
        return {"error": "", "processes": launch(run_script, ranks, *given, threads=1, timeout=500, env=env)}
    except RankError as error:
        if error.exception is None:  # not the script's own end: a rank was killed, or time was up
            raise
        return {"error": f"{type(error.exception).__name__}: {error.exception}", "processes": []}


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run_script(torchrun, source, options, folder):
    """On a rank: the script as the program of this process."""
    import torch.distributed as dist

    sys.path += os.environ["PYTHONPATH"].split(os.pathsep)  # here are torch_npu and apex
    launched = {name: os.environ[name] for name in LAUNCHED}
    for name in () if torchrun else LAUNCHED:  # the script makes its own
        del os.environ[name]
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what C++ says about neighbours that are gone
    os.chdir(folder)
    source = source.replace("29688", launched["MASTER_PORT"])  # a free port
    module, said, rank = types.ModuleType("main"), io.StringIO(), int(launched["RANK"])
    sys.argv = ["main.py", *options, "."]
    dist.init_process_group = _served_by_rank_0(dist.init_process_group)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(compile(source, "main.py", "exec"), vars(module))
            module.mp.spawn = lambda worker, nprocs, args: rank < nprocs and worker(rank, *args)  # the ranks are there
            module.main()
        except SystemExit:
            raise RuntimeError(said.getvalue().splitlines()[-1]) from None
    return _facts(said.getvalue())


def _served_by_rank_0(join):
    """Up to 2.12 or later, torch takes the launcher's word, that a store is served, for an address of the script's."""

    @functools.wraps(join)
    def joined(*args, **kwargs):
        if str(kwargs.get("init_method")).startswith("tcp://"):
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        return join(*args, **kwargs)

    return joined


def _facts(text):
    import torch

    from platforms.npu import counts

    done = counts.of_process() if hasattr(torch, "npu") else {"devices": {}}
    said = [re.sub(r"\t(Time|Data) [^\t]*", "", line) for line in text.splitlines()]
    validated = re.findall(r"Acc@5 \S+ of (\d+) images", text)
    return {"collectives": {}, "pinned": 0, **done} | {
        "cards": {int(card): counted.get("ops", 1) for card, counted in done["devices"].items()},
        "kernels": sum(counted.get("kernels", 0) for counted in done["devices"].values()),
        "int32": sum(counted.get("int32_targets", 0) for counted in done["devices"].values()),
        "losses": [float(loss) for loss in re.findall(r"^Epoch: .*\tLoss (\S+)", "\n".join(said), re.MULTILINE)],
        "validated": int(validated[-1]) if validated else 0,
        "said": said,
    }
