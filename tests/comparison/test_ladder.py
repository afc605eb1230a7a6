"""The ladder's rungs, and what compare does with runs that cannot be or fail."""

import pytest
from toys import toy_data

from helpers import RunConfig, device
from helpers.comparison import ladder


@pytest.mark.parametrize(
    "devices, labels",
    [
        (1, ["baseline", "DataParallel ×1", "DDP ×1"]),
        (2, ["baseline", "DataParallel ×2", "DDP ×2"]),
        (3, ["baseline", "DataParallel ×3", "DDP ×2", "DDP ×3"]),
        (8, ["baseline", "DataParallel ×8", "DDP ×2", "DDP ×4", "DDP ×8"]),
    ],
)
def test_the_ladder_changes_only_the_devices(devices, labels):
    rungs = ladder.ladder(devices, device="cpu", global_batch=66 if devices == 3 else 64)
    assert [r.label for r in rungs] == labels
    assert len({(r.global_batch, r.threads, r.lr, r.seed, r.model) for r in rungs}) == 1


def test_the_full_ladder_goes_on_to_half_formats_and_a_larger_batch(monkeypatch):
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1, "bfloat16": 1.5, "float16": 2.5})
    base, *_, top, half, last, grown = ladder.ladder(2, full=True, device="cpu", epochs=10)
    assert (half.label, last.label, grown.label) == (
        "DDP ×2 · fp16-mixed",
        "DDP ×2 · fp16-mixed · channels last",
        "DDP ×2 · batch 128, rate ×2, warm-up",
    )
    assert half.but(precision="fp32") == top and last.but(channels_last=False) == half
    assert (grown.local_batch, grown.peak_lr, grown.lr_warmup_epochs) == (64, 2 * base.lr, 1)
    assert ladder.ladder(2, full=True, device="cpu", precision="bf16")[-1].precision == "bf16-mixed"
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1, "bfloat16": 0.5})
    assert {r.precision for r in ladder.ladder(2, full=True, device="cpu")} == {"fp32"}


@pytest.mark.parametrize("devices", [0, -1, 2.5, "2", True])
def test_the_ladder_refuses_a_bad_number_of_devices(devices):
    with pytest.raises(ValueError, match="devices is"):
        ladder.ladder(devices, device="cpu")


def test_compare_refuses_what_does_not_go_together():
    config = RunConfig()
    for configs, more in (([config], dict(lr=1)), ([config, config], {}), ([], {}), (["ddp"], {})):
        with pytest.raises((TypeError, ValueError)):
            ladder.compare(configs, **more)


def test_the_ladder_leaves_out_what_cannot_be_compiled_and_rounds_the_batch_to_what_can_be_split():
    assert [r.label for r in ladder.ladder(2, device="cpu", compiler="inductor")] == [
        "baseline · inductor",
        "DDP ×2 · inductor",
    ]
    assert {r.global_batch for r in ladder.ladder(3, device="cpu", global_batch=64)} == {63}
    rungs = ladder.ladder(2, device="cpu", global_batch=63, accumulation=3)
    assert {(r.global_batch, r.accumulation) for r in rungs} == {(60, 3)}


def test_each_configuration_is_checked_once_and_before_any_run(monkeypatch):
    checked = []
    monkeypatch.setattr(RunConfig, "check_machine", lambda self: checked.append(self.label) or device.machine("cpu"))
    monkeypatch.setattr(ladder, "recorded", lambda config, *args, **more: pytest.fail(f"{config.label} was run"))
    several = RunConfig(strategy="ddp", nnodes=2, data=toy_data)
    with pytest.raises(ValueError, match="takes 2 hosts"):
        ladder.compare([RunConfig(data=toy_data), several])
    assert checked == ["baseline"]
