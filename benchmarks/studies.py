"""Studies: series of runs too long for a notebook, recorded once and kept as data.

python -m benchmarks.studies NAME          # records one on this machine; stopped, it goes on where it was
python -m benchmarks.studies NAME --keep   # and writes it to recorded/studies, as part of the kit

A notebook shows a recorded study (helpers.comparison.studies) beside a short form that it runs live.
"""

import argparse
import json
import os
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from helpers import device
from helpers.comparison import run
from helpers.comparison.studies import Study, digits_at_8, kept_path, load, own_path
from helpers.config import RunConfig, precision_refusal
from helpers.language import N_
from helpers.launcher.progress import Progress
from helpers.paths import replace_file
from helpers.records import store

SEEDS = (0, 1, 2, 3, 4)
LOCAL, RATE, HIGH = 16, 0.0005, 2.0  # of the studies of accuracy: a rank's batch, the rate for it, a very high peak
RATES = {  # of the study of optimizers
    "sgd": (0.00025, 0.001, 0.004, 0.016, 0.064, 0.256),
    "adamw": (0.00006, 0.00025, 0.001, 0.004, 0.016, 0.064),
}
HALVES = (("bf16", "bfloat16"), ("fp16", "float16"))
UNTIMED = ("batch_and_accuracy", "optimizers")  # only accuracies: recorded whatever else the machine does


def record(name, keep=False) -> Study:
    """Run what is missing of a study, one seed after the other, and save it after every run.

    Stopped, it goes on where it was. Runs made by other training code, or that failed, are repeated.
    With `keep` the finished study is also written to where the kit keeps those it comes with.
    """
    configs = {(config.label, config.seed): config for config in STUDIES[name]()}
    made = {(r["label"], r["config"]["seed"]): r for r in _usable(own_path(name))}
    missing = {key: config for key, config in configs.items() if key not in made}
    progress = Progress([config.label for config in missing.values()])
    with progress.turn(f"the study {name}"):
        for key, config in missing.items():
            with _empty_caches():  # what was compiled before would hide what it costs
                made[key] = _slim(run.run(config, group=f"study-{name}", progress=progress), name in UNTIMED)
            _write(own_path(name), name, made.values(), complete=False)
    for path in (own_path(name), kept_path(name))[: 1 + keep]:
        _write(path, name, [made[key] for key in configs], complete=True)
    return load(name)


def _usable(path):
    if not path.is_file():
        return []
    now = store.training_hash()
    return [
        r
        for r in json.loads(path.read_text(encoding="utf-8"))["records"]
        if r["status"] == "completed" and r["environment"]["code"]["training_sha256"] == now
    ]


@contextmanager
def _empty_caches():
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: os.path.join(folder, name) for name in ("HELPERS_CACHE", "TORCHINDUCTOR_CACHE_DIR")}
        with patch.dict(os.environ, caches):
            yield


def _slim(made, untimed):
    """The record with its samples to five digits; of an untimed study without anything that a busy machine changes."""
    rounded = lambda values: [float(f"{value:.5g}") for value in values]  # noqa: E731
    measured = made["measured"]
    samples = {name: rounded(values) for name, values in measured["samples"].items()}
    if untimed:
        samples = {"step_time_s": [], "input_wait_s": [], "loss": samples["loss"]}
        measured = {**measured, "step_time_s": None, "images_per_s": None, "input_wait_s": None}
    return {**made, "measured": {**measured, "samples": samples}}


def _write(path, name, records, complete):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(r) for r in records)
    head = f'"study": {json.dumps(name)}, "complete": {json.dumps(complete)}'
    replace_file(path, f'{{{head}, "records": [\n{lines}\n]}}\n')


# -- what each study runs -----------------------------------------------------------------


def batch_and_accuracy():
    """The trap of the larger global batch, and what wins the accuracy back. Its times are not kept."""
    plain = _small_training()
    two = plain.but(strategy="ddp", nproc_per_node=2, local_batch=LOCAL)
    four = plain.but(strategy="ddp", nproc_per_node=4, local_batch=LOCAL)
    linear, root = (dict(lr_scaling=rule, local_batch=LOCAL) for rule in ("linear", "sqrt"))
    warm, cool = dict(lr_warmup_epochs=1), dict(schedule="cooldown")
    high, small = four.but(lr=HIGH, local_batch=LOCAL, **cool), two.but(local_batch=2, epochs=1)
    rows = {
        N_("1 rank"): plain,
        N_("2 ranks, naive"): two,
        N_("4 ranks, naive"): four,
        N_("4 ranks, linear"): four.but(**linear),
        N_("4 ranks, sqrt"): four.but(**root),
        N_("4 ranks, linear + warm-up"): four.but(**linear, **warm),
        N_("4 ranks, linear + warm-up + cooldown"): four.but(**linear, **warm, **cool),
        N_("1 rank, cooldown"): plain.but(**cool),
        N_("4 ranks, high peak + cooldown"): high,
        N_("4 ranks, high peak + warm-up + cooldown"): high.but(**warm),
    }
    long = {
        N_("4 ranks, four times the epochs"): four.but(epochs=4 * plain.epochs),
        N_("local batch of 2, local statistics"): small,
        N_("local batch of 2, SyncBatchNorm"): small.but(sync_batch_norm=True),
    }
    return labelled(rows, SEEDS[:3]) + labelled(long, SEEDS[:3]) + labelled(rows, SEEDS[3:])


def optimizers():
    """Accuracy over the rate, for SGD and AdamW with a small and a large batch. Its times are not kept."""
    plain = _small_training()
    rows = {
        f"{optimizer}, batch {batch}, rate {rate:g}": plain.but(optimizer=optimizer, lr=rate, global_batch=batch)
        for batch in (16, 128)
        for optimizer in RATES
        for rate in RATES[optimizer]
    }
    return labelled({label: c.but(evaluate_every=None) for label, c in rows.items()}, SEEDS[:3])


def time_to_accuracy():
    """Seconds until an accuracy, naive and repaired: to be recorded on a machine that does nothing else."""
    one = _small_training()
    two = one.but(strategy="ddp", nproc_per_node=2, local_batch=LOCAL)
    mended = dict(lr_scaling="linear", local_batch=LOCAL, lr_warmup_epochs=1, schedule="cooldown")
    rows = {"1 rank": one, "2 ranks, naive": two, N_("2 ranks, linear + warm-up + cooldown"): two.but(**mended)}
    return labelled(rows, SEEDS)


def _small_training():
    return RunConfig(
        model="resnet8",
        data=digits_at_8,
        epochs=4,
        lr=RATE,
        base_batch=LOCAL,
        local_batch=LOCAL,
        augment=False,
        evaluate_every=1,
        device=_kind(4),
        threads=1,
    )


def precision():
    """The levels at one and two ranks: time, accuracy and memory."""
    kind = _kind(2)
    plain = RunConfig(
        model="resnet8", data="digits", epochs=8, lr=0.02, schedule="cosine", augment=False, device=kind, threads=1
    )
    levels = [level for level in ("fp32", "bf16", "O2-bf16", "fp16", "O2") if not precision_refusal(level, kind)]
    rungs = (plain, plain.but(strategy="ddp", nproc_per_node=2))
    return [rung.but(precision=level) for rung in rungs for level in levels]


def precision_by_batch():
    """How the gain of a half format grows with the work in a step."""
    kind = device.machine().kind
    fast = [level for level, dtype in HALVES if device.dtypes(kind).get(dtype, 0) > 1]
    cases = [("resnet18", "mock", batch) for batch in (2, 4, 16, 64, 256)]
    cases += [("resnet50", mock_at_64, batch) for batch in (2, 4, 16, 64)]
    return [
        RunConfig(
            model=model,
            data=images,
            local_batch=batch,
            precision=level,
            channels_last=last,
            lr=0.01,
            steps=23 if batch < 64 else 11,
            augment=False,
            evaluate=False,
            device=kind,
            threads=1,
            label=f"{model} {level}{' · channels last' * last}, batch {batch}",
        )
        for model, images, batch in cases
        for level in ("fp32", *fast)
        for last in (False, True)
    ]


def mock_at_64():
    """(train, None): the mock set's first 1,024 images, enlarged to 64×64 pixels."""
    import torch.nn.functional as F

    from helpers.data import sets

    sets.ensure("mock")
    small = sets.load("mock", "train")
    images = F.interpolate(small.images[:1024].float(), size=(64, 64), mode="bilinear").byte()
    return replace(small, images=images, labels=small.labels[:1024]), None


def compiler():
    """What the tuner finds for five models in two formats, each plan timed in turn with eager."""
    kind = device.machine().kind
    cases = [
        (model, level)
        for model in ("resnet18", "resnet50", "silunet", "silu_mlp", "transformer")
        for level in ("fp32", "bf16")
        if not precision_refusal(level, kind)
    ]
    return [
        RunConfig(
            model=model,
            data="mock",
            local_batch=16,
            precision=level,
            compiler="auto",
            lr=0.01,
            steps=60,
            augment=False,
            evaluate=False,
            device=kind,
            threads=1,
            label=f"{model}{' · bf16' * (level != 'fp32')}",
        )
        for model, level in cases
    ]


def sharding():
    """Each strategy with the same GPT of 10 million weights and the same batch, beside one process."""
    one = RunConfig(
        model=gpt_of_10_million,
        data="tokens",
        optimizer="adamw",
        lr=1e-3,
        global_batch=8,
        steps=12,
        evaluate=False,
        device=_kind(4),
        threads=1,
    )
    two = one.but(strategy="ddp", nproc_per_node=2)
    full = two.but(strategy="fsdp")
    rows = {
        "one process": one,
        "DDP ×2": two,
        "ZeRO-1 ×2": two.but(strategy="zero1"),
        "FSDP ×2, grad_op (ZeRO-2)": full.but(shard="grad_op"),
        "FSDP ×2, full (ZeRO-3)": full,
        "FSDP ×2, full, offload": full.but(offload=True),
        "FSDP ×2, full, recompute selective": full.but(activation_checkpointing="selective"),
        "FSDP ×2, full, recompute full": full.but(activation_checkpointing="full"),
        "FSDP ×4, hybrid": full.but(shard="hybrid", nproc_per_node=4),
    }
    return labelled(rows, SEEDS[:1])


def gpt_of_10_million():
    """That of notebook 12."""
    from helpers.training.gpt import gpt

    return gpt(layers=8, width=320, heads=5, vocabulary=60, length=64)


def xla():
    """DDP on two CPU processes, and the same training through XLA."""
    plain = RunConfig(
        model="silu_mlp",
        strategy="ddp",
        nproc_per_node=2,
        global_batch=64,
        steps=20,
        lr=0.005,
        augment=False,
        threads=1,
        device="cpu",
    )
    return [
        with_xla
        for one in (plain, plain.but(precision="bf16"))
        for with_xla in (one, one.but(compiler="xla", device=None))
    ]


def torchacc():
    """The four launch lines of TorchAcc's ResNet-50 example: AMP on one device and on two, without and with XLA."""
    one = RunConfig(
        model="resnet50",
        data="imagenet-mock",
        precision="bf16",
        local_batch=2,
        steps=8,
        lr=0.001,
        augment=False,
        evaluate=False,
        threads=1,
        device="cpu",
    )
    two = one.but(strategy="ddp", nproc_per_node=2, local_batch=2)
    with_xla = dict(compiler="xla", device=None)
    rows = {
        "1 device": one,
        "2 devices": two,
        "1 device · compiler-opt": one.but(**with_xla),
        "2 devices · compiler-opt": two.but(**with_xla),
    }
    return labelled(rows, SEEDS[:1])


STUDIES = {
    study.__name__: study
    for study in (
        batch_and_accuracy,
        optimizers,
        time_to_accuracy,
        precision,
        precision_by_batch,
        compiler,
        sharding,
        xla,
        torchacc,
    )
}


def labelled(rows, seeds):
    """A config for each row and seed, one seed after the other, so that a slow hour is shared by all rows."""
    return [replace(config, label=label, seed=seed) for seed in seeds for label, config in rows.items()]


def _kind(devices):
    """The device kind for runs on so many devices: with fewer accelerators, CPU processes stand in for them."""
    here = device.machine()
    return here.kind if here.count >= devices else "cpu"


def main(arguments=None):
    """Record one study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=STUDIES)
    parser.add_argument("--keep", action="store_true", help="also write it to recorded/studies, as part of the kit")
    options = parser.parse_args(arguments)
    study = record(options.name, options.keep)
    print(f"{study.name}: {len(study.records)} runs, {study.made}: {study.path}")


if __name__ == "__main__":
    main()
