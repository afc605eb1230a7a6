"""The checks of notebook 07: right answers pass, and each kind of mistake has a hint of its own."""

import os
import re

import pytest
from answers import Checks, cells, edited, objection, solution
from npu_ranks import needs_npu

import helpers
from exercises import check
from platforms.migrate import guide

NOTEBOOK = "07_npu_migration.ipynb"


@pytest.fixture(scope="module", autouse=True)
def quick_launches():
    helpers.prepare_launcher()


def scripts():
    """(the CUDA script, the solution, the first attempt) of the notebook, as texts."""
    sources, names = cells(NOTEBOOK), {}
    exec(sources["npu-turn-script-text"], names)
    exec(solution(sources["npu-turn-script-solution"]), names)
    right = names["my_script"]
    exec(re.sub(r"^check\..*$", "", sources["npu-turn-script-code"], flags=re.MULTILINE), names)
    return names["cuda_script"], right, names["my_script"]


@needs_npu
def test_the_solution_is_migrated_and_the_first_attempt_is_not(capsys):
    _, right, first = scripts()
    assert check.migrated(right) is True
    capsys.readouterr()
    assert "step 7" in objection("migrated", first, capsys)


@needs_npu
def test_what_the_tool_leaves_to_the_reader(capsys):
    from platforms.migrate import migrate

    made = migrate(scripts()[0], style="modern").result
    assert "step 10" in objection("migrated", made, capsys)
    assert check.migrated(made.replace("pin_memory=False", "drop_last=True")) is True


SET = 'torch.npu.set_device(int(os.environ["LOCAL_RANK"]))'
SPOILED = [  # edits of the solution
    "import torch_npu\n => \n",
    '"hccl" => "nccl"',
    f"{SET} => pass",
    'wanted.to("npu") => wanted',
    'torch.zeros(2, device="npu") => torch.zeros(2) ;; .to("npu")\ndist => \ndist',
    '"npu" => "cpu" ;; "hccl" => "gloo"',
    'int(os.environ["LOCAL_RANK"]) => 1 - int(os.environ["LOCAL_RANK"])',
    "model = nn.parallel.DistributedDataParallel(model)\n => \n",
    "drop_last=True => drop_last=True, pin_memory=True",
    "drop_last=True => drop_last=False",
    "schedule.step() => pass",
    "scaler.scale(loss) => loss ;; scaler.step(optimizer) => optimizer.step() ;; scaler.update() => pass",
    "dist.all_reduce(total) => pass",
    "print( => str(",
    "\nimport os => \nimport os)",
    "range(4) => range(0)",
]


def test_without_a_compiler_a_check_says_so(monkeypatch, capsys):
    monkeypatch.setattr("platforms.npu.recorded.why_missing", lambda: "there is no compiler")
    assert "none can be had here: there is no compiler" in objection("migrated", print, capsys)


class TestNpu(Checks):
    notebook = NOTEBOOK
    known = dict(script=guide.script([]))
    known |= dict.fromkeys(("after_1", "after_2", "after_3"), guide.script([]))
    exercises = {f"step_{n}": (f"npu-step-{n}", f"after_{n}") for n in range(1, 5)}
    slow = ("migrated",)
    marks = dict.fromkeys(slow, [needs_npu])
    mistakes = {
        "step_1": [
            "import torch_npu\\n => ",
            "import amp => import optimizers",
            3,
            "import (",
            "import torch\\nimport torch_npu => import torch_npu\\nimport torch",
        ],
        "step_2": [
            'default="nccl"\' => default="gloo"\'',
            "type=float => type=str",
            '"--device" => "--gpus"',
            "1024.0 => 512.0",
            '"store_true" => "store_false"',
            '"--addr" => "--rank"',
            3,
        ],
        "step_3": [
            "sorted( => list(",
            "int(card) for => card for",
            "return dict( => dict(",
            "enumerate(cards) => enumerate(cards, 1)",
            "device_id_to => id_to",
            "cards = sorted => cards = 1 / 0 + sorted",
        ],
        "step_4": [
            '= args.addr => = "127.0.0.1"',
            '"29688" => 29688',
            '"29688" => "**"',
            "MASTER_PORT => PORT",
            "= args.addr => = args.address",
        ],
        "migrated": [*(edited(scripts()[1], edits) for edits in SPOILED), os.getcwd],
    }
