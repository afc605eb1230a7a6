"""Every public operation of helpers.hvd at 1 to 4 ranks, against a NumPy oracle; the cases are in hvd_cases/."""

import ast
import inspect
import subprocess
import sys

import pytest
from hvd_cases import lab
from kernel import ROOT

import helpers

EVERYTHING = lab.SECTIONS + lab.LARGER
QUICK = [(1, EVERYTHING), (2, EVERYTHING[:-1]), (3, (*lab.SECTIONS, "batch_norm", "ddp"))]  # 3 divides nothing evenly
LONG = [(2, ("ddp",)), (3, lab.LARGER), (4, lab.SECTIONS)]


@pytest.mark.parametrize("size, sections", QUICK + [pytest.param(*one, marks=pytest.mark.long) for one in LONG])
def test_every_case(size, sections):
    helpers.launch(lab.run, size, sections, threads=1, timeout=1800)


@pytest.mark.parametrize("size, capacity", [(2, "0"), *(pytest.param(n, "5", marks=pytest.mark.long) for n in (2, 4))])
def test_steps_that_repeat_with_few_numbers(size, capacity):
    env = {"HOROVOD_CACHE_CAPACITY": capacity, "HOROVOD_FUSION_THRESHOLD": "30", "HOROVOD_CYCLE_TIME": "1"}
    helpers.launch(lab.run, size, ("repeat", "join", "mismatch"), threads=1, timeout=1800, env=env)


def test_the_core_knows_no_framework():
    code = "import helpers.hvd.core, sys; assert not {'torch', 'numpy', 'tensorflow'} & set(sys.modules), 'a framework'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=1800)


def test_what_mxnet_s_ranks_import_can_be_read_by_python_3_8():
    folders = [ROOT / "helpers" / "hvd", ROOT / "helpers" / "launcher"]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    files += [ROOT / name for name in ("helpers/__init__.py", "helpers/device.py", "tests/hvd/mxnet_ranks.py")]
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


REDUCED = "average=None name=None op=None prescale_factor=1.0 postscale_factor=1.0 process_set"
PRESSED = "average=None name=None compression op=None prescale_factor=1.0 postscale_factor=1.0 process_set"
GROUPED = {  # of Horovod 0.28: parameters in their order, with simple defaults
    "allreduce": PRESSED, **dict.fromkeys(("allreduce_async", "allreduce_", "allreduce_async_"), REDUCED),
    **dict.fromkeys(("allgather", "allgather_async"), "name=None process_set"),
    "reducescatter": "name=None compression op process_set prescale_factor=1.0 postscale_factor=1.0",
    "reducescatter_async": "name=None op process_set prescale_factor=1.0 postscale_factor=1.0",
}  # fmt: skip
SIGNATURES = {
    **{name: f"tensor {rest}" for name, rest in GROUPED.items()},
    **{f"grouped_{name}": f"tensors {rest}" for name, rest in GROUPED.items()},
    **{f"broadcast{way}": "tensor root_rank name=None process_set" for way in ("", "_", "_async", "_async_")},
    **dict.fromkeys(("alltoall", "alltoall_async"), "tensor splits=None name=None process_set"),
    "sparse_allreduce_async": "tensor name op process_set",
    "join": "device=-1", "barrier": "process_set", "poll": "handle", "synchronize": "handle",
    "broadcast_parameters": "params root_rank", "broadcast_optimizer_state": "optimizer root_rank",
    "broadcast_object": "obj root_rank=0 name=None process_set", "add_process_set": "process_set",
    "remove_process_set": "process_set", "start_timeline": "file_path mark_cycles=False", "stop_timeline": "",
}  # fmt: skip
SIMPLE = (type(None), int, float, bool)


def spelled(function):
    words = []
    for parameter in inspect.signature(function).parameters.values():
        simple = parameter.default is not parameter.empty and type(parameter.default) in SIMPLE
        words.append(parameter.name + (f"={parameter.default}" if simple else ""))
    return words


def test_signatures_are_those_of_horovod():
    import helpers.hvd.torch as hvd

    for name, wanted in SIGNATURES.items():
        assert spelled(getattr(hvd, name))[: len(wanted.split())] == wanted.split(), name
