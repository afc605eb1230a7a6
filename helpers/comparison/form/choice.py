"""`Choice`: what was chosen in the form; from it follow the runs, the code, the command lines, or why it is impossible.

Nothing here knows of widgets, and nothing here starts a run.
"""

import re
import shlex
from dataclasses import dataclass, field, replace

from ... import device
from ...config import SETTINGS, RunConfig, precision_refusal
from ...settings import NO_OPTION
from ...training import precision
from .refusal import NAMES_HERE, UNITS, Refusal, check

TITLE = "choose and run"  # the comparison's name in its records
PLAIN = RunConfig()  # what need not be written
SCHEDULE = "cooldown"  # a constant rate leaves the accuracy at the end to chance
SMALL_BATCH = 64


@dataclass(frozen=True)
class Choice:
    """A run to compare with a baseline: one device, fp32, no compiler, the same batch and data.

    Any value can be put in; `refusal` says what is wrong with it.

    Attributes:
        ranks: devices on this machine; with 1 the strategy does not count.
        batch: samples in one update of the weights, over all devices.
        length, unit: how long to train, in "epochs" or "steps".
        prediction: how many times as fast as the baseline the reader expects it to be, or None.
        device: a device kind, where it is not the one that any process here would take (None).
        more: values of other settings of RunConfig (see `more_settings`), the same in both runs, except for those
            that only some strategies can have.
    """

    model: str = "resnet8"
    data: str = "digits"
    ranks: int = 2
    strategy: str = "ddp"
    precision: str = "fp32"
    compiler: str = "none"
    batch: int = SMALL_BATCH
    length: int = 4
    unit: str = "epochs"
    prediction: float | None = None
    device: str | None = None
    more: dict = field(default_factory=dict)

    @classmethod
    def sensible(cls, kind=None) -> "Choice":
        """A first choice for this machine: all devices with DDP, and runs of half a minute at most.

        Args:
            kind: of the devices (default: the best there is, or what `choose_devices` has chosen).

        Raises:
            ValueError: there is no such device here.
        """
        here = device.machine(kind)
        usual = device.accelerator_kind() or "cpu"  # what a process started in a terminal would take
        chosen = cls(ranks=here.count, device=None if here.kind == usual else here.kind)
        chosen = replace(chosen, batch=here.count * max(1, round(SMALL_BATCH / here.count)))
        if here.kind != "cpu":  # enough work for a device that is thousands of times faster than a core
            chosen = replace(chosen, model="resnet50", batch=SMALL_BATCH * here.count, length=100, unit="steps")
        if here.count == 1:  # what can be compared on one device
            halves = [name for name in ("bf16-mixed", "fp16-mixed") if not precision_refusal(name, here.kind)]
            return replace(chosen, precision=halves[0]) if halves else replace(chosen, compiler="auto")
        return chosen

    # -- the runs -------------------------------------------------------------------------

    def configs(self) -> list:
        """[baseline, choice] as RunConfigs. Raises ValueError or TypeError, as they do."""
        base = RunConfig(**self._shared())
        return [base, base.but(**self._changed())]

    def _shared(self):
        """Settings of both runs that are not RunConfig's defaults."""
        length = {self.unit if self.unit in UNITS else "epochs": self.length}
        settings = dict(
            model=self.model, data=self.data, global_batch=self.batch, **length, schedule=SCHEDULE, device=self.device
        )
        return _unusual(**{**settings, **self._more(self.more.keys() - self.alone())})

    def _more(self, names):
        return {name: value for name, value in self.more.items() if name in names}

    def alone(self) -> list:
        """Names of the settings in `more` that the baseline cannot have."""
        return [name for name in self.more if SETTINGS[name].only]

    def _changed(self):
        """Settings in which the choice differs from the baseline."""
        several = {} if self.ranks == 1 else {"strategy": self.strategy, "nproc_per_node": self.ranks}
        return _unusual(**several, precision=self.precision, compiler=self.compiler, **self._more(self.alone()))

    def refusal(self) -> Refusal | None:
        """Why this cannot be run here, or None. Never raises, and starts nothing."""
        return check(self)

    def advice(self) -> str:
        """What to expect of a choice that is possible but unwise; "" if nothing.

        The first time it is asked about a half format it measures it, which takes half a second.
        """
        kind = device.machine(self.device).kind
        notes = (
            precision.advice_text(precision.advice(self.precision, kind)),
            device.oversubscribed(self.ranks, kind=self.device),
        )
        return "; ".join(filter(None, notes))

    # -- the same as code and as command lines ---------------------------------------------

    def code(self) -> str:
        """Python that does what the Run button does, in the foreground."""
        expected = "" if self.prediction is None else f", prediction={{choice.label: {self.prediction!r}}}"
        return (
            "import helpers\n\n"
            f"baseline = helpers.RunConfig({_arguments(self._shared())})\n"
            f"choice = baseline.but({_arguments(self._changed())})\n"
            f"comparison = helpers.compare([baseline, choice]{expected})\n"
            "comparison.show()"
        )

    def commands(self) -> list:
        """Command lines that make the same two runs, each with a record, and then a report of all records."""
        changed = self._changed()
        if changed.get("strategy") == "ddp":  # `train` takes DDP for more than one device
            del changed["strategy"]
        return [_train(self._shared()), _train({**self._shared(), **changed}), "python -m helpers report"]


def from_words(text) -> float | None:
    """The factor that a reader has typed ("1.8", "1,8", "1.8×"), or None for nothing.

    Raises:
        ValueError: it is no number.
    """
    text = re.sub(r"\s*(×|x|times)?\s*$", "", str(text).strip())
    return float(text.replace(",", ".")) if text else None


def _unusual(**settings):
    return {name: value for name, value in settings.items() if value != getattr(PLAIN, name)}


def _arguments(settings):
    return ", ".join(f"{name}={_quoted(value)}" for name, value in settings.items())


def _quoted(value):
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _train(settings):
    options = [
        f"--{'' if value else 'no_'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in settings.items()
    ]
    return shlex.join(["python", "-m", "helpers", "train", *options])


def more_settings() -> list:
    """The Settings that the form offers beside its own fields, if they can be typed.

    Those of a ladder are the same in both runs; those that a baseline cannot have (`only`) are the choice's alone.
    """
    own = {*Choice.__dataclass_fields__, *NAMES_HERE}
    found = [one for one in SETTINGS.values() if one.plain and one.name not in own]
    return [one for one in found if one.only or one.name not in NO_OPTION["run"]]
