"""The lines of Alibaba's article, spelled as they are: each script of tests/horovod/perseus/perseus_*.py on two ranks.

docs/project/sources.md says which line stands in which script.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python_of(framework):
    return Path(os.environ.get(f"HELPERS_{framework.upper()}_PYTHON") or ROOT / f".venv-{framework}" / "bin" / "python")


def needs(framework):
    missing = not python_of(framework).exists()
    return [getattr(pytest.mark, framework), pytest.mark.skipif(missing, reason=f"needs `make {framework}`")]


def run(python, *command, **variables):
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    quiet = {
        "PYTHONWARNINGS": "ignore",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    environment = {**clean, **quiet, "PYTHONPATH": str(ROOT), "HOROVOD_START_TIMEOUT": "120", **variables}
    done = subprocess.run([python, *map(str, command)], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "python, script",
    [
        (sys.executable, "perseus_torch.py"),
        pytest.param(python_of("mxnet"), "perseus_mxnet.py", marks=needs("mxnet")),
        pytest.param(python_of("keras"), "perseus_tf1.py", marks=needs("keras")),
    ],
)
def test_the_steps_of_each_framework(python, script, tmp_path):
    arguments = [] if "mxnet" in script else [tmp_path / "checkpoint"]
    said = run(
        python, "-m", "platforms.horovod", "-np", 2, ROOT / "tests/horovod/perseus" / script, *arguments, DEVICES="0"
    )
    assert set(re.findall(r"rank (\d) of 2 ", said)) == {"0", "1"}, said[-2000:]


def test_the_drop_in_for_ddp_with_the_options_of_train_sh():
    options = ["--dist-url", "tcp://127.0.0.1:88", "--world-size", 1, "--rank", 0]
    script = ROOT / "tests" / "horovod" / "perseus" / "perseus_ddp.py"
    said = run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, *options)
    assert set(re.findall(r"rank (\d) of 2 ", said)) == {"0", "1"}, said[-2000:]


def test_the_names_are_aliases_and_others_are_no_modules():
    code = (
        "import perseus, importlib\n"
        "ours = importlib.import_module('platforms.horovod.ddp')\n"
        "assert perseus.torch.nn.parallel is perseus.torch.distributed is ours\n"
        "import perseus.torch.horovod.elastic as one, platforms.horovod.torch.elastic as other\n"
        "assert one is other\n"
        "for name in 'perseus.none', 'perseus.torch.none', 'perseus.torch.horovod.none', 'horovod':\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error: assert error.name == name, error\n"
        "    else: raise AssertionError(name)\n"
    )
    run(sys.executable, "-c", code)
