"""What each level of mixed precision keeps and computes in which format; `precision` puts them to work."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """What is kept and computed in which format.

    Attributes:
        dtype: name of the format that most is computed in.
        autocast: whether torch.amp picks the format of each operation.
        half_weights: whether the model's own weights are in `dtype`; norm layers stay in fp32 with
            `fp32_norms`, and with `masters` the optimizer updates fp32 copies of the weights.
        scaled: whether the loss is scaled, which fp16 needs for its narrow range.
    """

    name: str
    dtype: str = "float32"
    autocast: bool = False
    half_weights: bool = False
    fp32_norms: bool = False
    masters: bool = False
    scaled: bool = False


def _levels():
    yield Level("fp32")
    for dtype, ending in (("float16", ""), ("bfloat16", "-bf16")):
        narrow = dtype == "float16"
        yield Level(f"O1{ending}", dtype, autocast=True, scaled=narrow)
        yield Level(f"O2{ending}", dtype, True, half_weights=True, fp32_norms=True, masters=True, scaled=narrow)
        yield Level(f"O3{ending}", dtype, half_weights=True)


LEVELS = {level.name: level for level in _levels()}
ALIASES = {**{name: name for name in LEVELS}, "O0": "fp32", "fp16": "O1", "bf16": "O1-bf16"}
