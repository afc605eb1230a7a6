"""A strategy and a precision added from outside, each by one class and one row, are known everywhere."""

import pytest
import torch
from toys import ToySet, smooth_net

from helpers import RankError, RunConfig, launch
from helpers import __main__ as cli
from helpers.config import PRECISIONS, SETTINGS, STRATEGIES, ConfigError, Precision, Strategy
from helpers.training import checkpoint, precision, strategies
from helpers.training.loop import train


class Signs(strategies.DDP):
    """DDP that sends the signs of the gradients only."""

    def wrap(self, model, gathered_in=None):
        wrapped = super().wrap(model)
        everywhere = torch.distributed.all_reduce

        def hook(state, bucket):
            work = everywhere(bucket.buffer().sign_(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        wrapped.register_comm_hook(None, hook)
        return wrapped


class Clipped(precision.MixedPrecision):
    """Outputs between -0.1 and 0.1."""

    def forward(self, model, inputs):
        return super().forward(model, inputs).clamp(-0.1, 0.1)


def plug_in():
    """The two rows; ranks add them, too."""

    def refuses(config):
        if config.optimizer == "adamw":
            yield ("strategy", "optimizer"), "signs leave nothing for AdamW to scale; choose 'sgd'"

    STRATEGIES["signs"] = Strategy(
        "Signs", "DDP, signs only", f"{__name__}:Signs", compilers=("none",), refuses=refuses
    )
    PRECISIONS["bf16-clipped"] = Precision(
        "bf16, outputs clipped", "bfloat16", autocast=True, aliases=("clipped",), trains=f"{__name__}:Clipped"
    )


@pytest.fixture(autouse=True)
def plugged_in():
    before = [(table, dict(table)) for table in (STRATEGIES, PRECISIONS)]
    plug_in()
    yield
    for table, rows in before:
        table.clear()
        table.update(rows)


def data():
    return ToySet(dtype=torch.float32), ToySet(37, torch.float32)


def net():
    return smooth_net(dtype=torch.float32)


def config(**changes):
    settings = dict(model=net, data=data, global_batch=32, lr=1e-3, steps=8, threads=1)
    return RunConfig(**{"strategy": "signs", "nproc_per_node": 2, **settings, **changes})


def trained(config):
    def with_plugins(config):
        plug_in()
        return train(config)

    return launch(with_plugins, config.processes, config, timeout=600)[0]


def test_names_are_checked_labelled_and_offered():
    chosen = config(precision="clipped")
    assert (chosen.precision, chosen.label, chosen.processes) == ("bf16-clipped", "Signs ×2 · bf16-clipped", 2)
    assert SETTINGS["strategy"].choices["signs"] == "DDP, signs only"  # what the form lists
    assert SETTINGS["precision"].choices["bf16-clipped"] == "bf16, outputs clipped"
    options = cli._parser().parse_args(["train", "--strategy", "signs", "--amp-level", "clipped"])
    assert (options.strategy, options.precision) == ("signs", "clipped")
    for changes, fields in (
        ({"compiler": "inductor"}, ("compiler", "strategy")),
        ({"optimizer": "adamw"}, ("strategy", "optimizer")),
        ({"shard": "hybrid"}, ("shard", "strategy")),
    ):
        with pytest.raises(ConfigError) as caught:
            config(**changes)
        assert caught.value.fields == fields


def test_their_classes_train():
    plain, signs = (trained(config(strategy=name))["samples"]["loss"] for name in ("ddp", "signs"))
    assert plain[0] == signs[0] and plain[1:] != signs[1:]
    mixed, clipped = (trained(config(precision=name))["samples"]["loss"] for name in ("bf16", "clipped"))
    assert mixed != clipped


def test_a_run_resumes_and_its_checkpoint_has_to_agree(tmp_path):
    plugged = dict(precision="clipped", checkpoint_dir=str(tmp_path))
    whole = trained(config(precision="clipped"))
    trained(config(steps=4, checkpoint_every=4, **plugged))
    assert [path.suffix for path in checkpoint.found(tmp_path)] == [".pt"]
    rest = trained(config(resume=True, **plugged))
    assert rest["samples"]["loss"] == whole["samples"]["loss"][4:]
    with pytest.raises(RankError, match="precision 'bf16-clipped'"):
        trained(config(resume=True, checkpoint_dir=str(tmp_path)))
