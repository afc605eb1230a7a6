"""The checks of notebook 08: right answers pass, and each kind of mistake has a hint of its own."""

import torch.distributed as dist
from answers import Checks

DISTRIBUTED = "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=models.named_parameters())\n"
WEIGHTS = "hvd.broadcast_parameters(models.state_dict(), root_rank=0)\n"
STATE = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n"
MERGED = "{**encoder.state_dict(), **classifier.state_dict()}"
FEWEST = "fewest = hvd.allreduce(torch.tensor(len(batches)), op=hvd.Min, name='fewest')"
ON_ONE = "encoder, device_ids=[hvd.local_rank()]"
ANY_ORDER = "sorted(parameters, key=lambda pair: pair[0]) => parameters"


class TestHvd(Checks):
    notebook = "08_horovod_api.ipynb"
    right = {
        "averaged_by_name": ["(p.grad, name=name) => (p.grad)"],  # an order that all agree on
        "ten_steps": [f"models = nn => encoder = nn.DataParallel({ON_ONE})\nmodels = nn"],
    }
    slow = ("ten_steps", "averaged_by_name")
    mistakes = {
        "ten_steps": [
            "import platforms.horovod.torch as hvd\n => ",
            "hvd.init()\n => ",
            "hvd.local_rank() => 0",
            "0.02 * hvd.size() => 0.02",
            f"{DISTRIBUTED} => ",
            f"{WEIGHTS} => ",
            f"models.state_dict(), root => {MERGED}, root",
            f"{STATE} => ",
            "root_rank=0 => root_rank=1",
            "sampler=sampler => shuffle=True",
            "models = nn.Mod => encoder = nn.DataParallel(encoder)\nmodels = nn.Mod",
            "if hvd.rank() == 0:\n    kept => if True:\n    kept",
            "if hvd.rank() == 0:\n    kept => if hvd.rank() == 1:\n    kept",
            " if hvd.rank() == 0 else None => ",
            '    print(f"the last => print(f"the last',
            "if hvd.rank() == 0 and os => if os",
            f"{WEIGHTS} =>  ;; if hvd.rank() == 0 and os => {WEIGHTS}if hvd.rank() == 0 and os",
            "models.named_parameters() => [*encoder.named_parameters(), *classifier.named_parameters()]",
            "gpu = => gpu = =",
        ],
        "averaged_by_name": [
            f"(p.grad, name=name) => (p.grad) ;; {ANY_ORDER}",
            "name=name => name=name, op=hvd.Sum",
            "name=name => name=name, op=hvd.Sum ;; synchronize(handle) => synchronize(handle).div_(2)",
            "synchronize(handle) => synchronize(handle).div_(hvd.size())",
            "allreduce_async_ => allreduce_async",
            ANY_ORDER,
            lambda parameters: [dist.all_reduce(p.grad) for _, p in parameters],
        ],
    }


class TestUnequalBatches(Checks):
    notebook = "more/08_when_it_breaks.ipynb"
    slow = ("everybody_finishes",)
    mistakes = {
        "everybody_finishes": [
            "last = => return",
            "last = hvd.join() => return",
            "model(batch).square().mean().backward() => model(batch) ;; optimizer.step() => pass",
            f"for batch in batches => {FEWEST}\n    for batch in batches[:fewest]",
        ],
    }
