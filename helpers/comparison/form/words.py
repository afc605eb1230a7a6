"""What the choices of the form are called, and what each of them means, in a few words."""

from ...data.recipes import RECIPES

SETTINGS = {  # a Choice's fields, as the form calls them; the order is that of the form
    "model": "model", "data": "data", "ranks": "ranks", "strategy": "strategy", "precision": "precision",
    "compiler": "compiler", "batch": "global batch", "length": "length", "prediction": "expected factor",
    "device": "device",
}  # fmt: skip
FIELDS = {  # RunConfig's names, as its messages use them -> fields of a Choice
    "model": "model", "data": "data", "nproc_per_node": "ranks", "strategy": "strategy", "precision": "precision",
    "compiler": "compiler", "global_batch": "batch", "epochs": "length", "steps": "length",
    "device": "device",
}  # fmt: skip
MODELS = {
    "resnet8": "8 layers, 78 thousand weights",
    "resnet20": "20 layers, 270 thousand weights",
    "resnet18": "18 layers, 11 million weights, made for large images",
    "resnet50": "50 layers, 24 million weights, made for large images",
    "silunet": "separable convolutions, much pointwise work",
    "silu_mlp": "no convolution at all, small matrices",
    "transformer": "attention over patches of 4×4 pixels",
}
STRATEGIES = {
    "ddp": "DDP: a process for each device, gradients averaged",
    "data_parallel": "DataParallel: one process drives all devices",
}
PRECISIONS = {
    "fp32": "32 bits throughout",
    "O1": "fp16 where it is safe, chosen for each operation",
    "O2": "fp16 weights, with fp32 copies for the update",
    "O3": "fp16 throughout, nothing to fall back on",
    "O1-bf16": "bf16 where it is safe, chosen for each operation",
    "O2-bf16": "bf16 weights, with fp32 copies for the update",
    "O3-bf16": "bf16 throughout, nothing to fall back on",
}
COMPILERS = {
    "none": "eager: one operation after the other",
    "auto": "tries plans in the first steps, keeps the fastest right one",
    "inductor": "torch.compile, come what may",
    "xla": "XLA, in an environment of its own (make xla)",
}
UNITS = ("epochs", "steps")


def options(meanings) -> list:
    """[("fp32 – 32 bits throughout", "fp32"), …] for a list to choose from."""
    return [(f"{value} – {meaning}", value) for value, meaning in meanings.items()]


def data_options(names) -> list:
    """The same for data sets, in the words of their recipes."""
    return options({name: RECIPES[name].summary.partition(";")[0] for name in names})


def strategy_options() -> list:
    """The same for strategies, whose meaning begins with their name."""
    return [(meaning, value) for value, meaning in STRATEGIES.items()]


def rank_options(kind, count) -> list:
    """The same for 1 to `count` ranks on devices of `kind`."""
    play = ", each played by a process of the CPU" if kind == "cpu" else ""
    return [("1 – one device", 1), *((f"{n} – as many devices{play}", n) for n in range(2, count + 1))]


def rank_words(ranks, strategy) -> str:
    """Where a choice runs."""
    return "on one device" if ranks == 1 else f"on {ranks} devices with {STRATEGIES[strategy].partition(':')[0]}"
