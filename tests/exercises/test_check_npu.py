"""The checks of notebook 07: right answers pass, and each kind of mistake has a hint of its own."""

import os

from answers import Checks, cells, edited, function, solution
from npu_ranks import needs_npu

from platforms.migrate import guide, migrate

TOOL = "more/07_tool.ipynb"
CUDA = function("cuda_script", cells(TOOL)["npu-turn-script-text"], TOOL)
MINE = function("my_script", solution(TOOL, "migrated"), TOOL, cuda_script=CUDA)
SPOILED = [  # edits of the solution
    "import torch_npu\n => \n",
    '"hccl" => "nccl"',
    'torch.npu.set_device(int(os.environ["LOCAL_RANK"])) => pass',
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


class TestNpu(Checks):
    notebook = "07_npu_migration.ipynb"
    known = dict.fromkeys(("script", "after_1", "after_2", "after_3"), guide.script([]))
    mistakes = {
        "step_1": [
            "import torch_npu\\n => ",
            "import amp => import optimizers",
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
        ],
        "step_3": [
            "sorted( => list(",
            "int(card) for => card for",
            "return dict( => dict(",
            "enumerate(cards) => enumerate(cards, 1)",
            "device_id_to => id_to",
        ],
        "step_4": [
            '= args.addr => = "127.0.0.1"',
            '"29688" => 29688',
            '"29688" => "**"',
            "MASTER_PORT => PORT",
        ],
    }


class TestTool(Checks):
    notebook = TOOL
    known = {"cuda_script": CUDA}
    right = {"migrated": [migrate(CUDA, style="modern").result.replace("pin_memory=False", "drop_last=True")]}
    slow = ("migrated",)
    marks = dict.fromkeys(slow, [needs_npu])
    mistakes = {"migrated": [*(edited(MINE, edits) for edits in SPOILED), os.getcwd]}
