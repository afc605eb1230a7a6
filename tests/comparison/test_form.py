"""The form: what it would run is what its code and its command lines run; what cannot be is refused, and why."""

import html
import json
import shlex
import sys
from dataclasses import replace
from itertools import cycle, islice, product
from types import SimpleNamespace

import ipywidgets
import pytest
import records
from kernel import wait_until
from shards import needs_fsdp

import helpers
from helpers import RunConfig, RunStopped, config, device
from helpers import __main__ as cli
from helpers.comparison import ladder, run
from helpers.comparison.form import form, page, widgets
from helpers.comparison.form.choice import Choice, from_words
from helpers.comparison.form.refusal import noun, steps_of
from helpers.comparison.form.widgets import Form
from helpers.compiler import Plan
from helpers.compiler.trials import Candidate, Trials
from helpers.data import sets
from helpers.launcher import display
from helpers.training import compiled

CHOICES = [
    Choice(),
    Choice(prediction=1.85),
    Choice(ranks=1, precision="bf16-mixed"),
    Choice(ranks=1, compiler="inductor"),
    Choice(strategy="data_parallel", batch=128),
    Choice(model="silunet", data="mock", compiler="auto"),
    Choice(ranks=1, strategy="data_parallel", precision="fp16-masters"),
    Choice(length=1),
    Choice(length=64, unit="steps"),
    Choice(device="cpu", batch=32, precision="bf16-true", model="transformer", length=200, unit="steps"),
    Choice(strategy="fsdp", more=dict(shard="grad_op", offload=True, activation_checkpointing="full")),
    Choice(more=dict(augment=False, channels_last=True, weight_decay=0.0, schedule="constant", threads=1)),
]


@pytest.fixture(autouse=True)
def a_machine_that_can_do_everything(monkeypatch):
    """Two CPU devices, every format, every set: what is refused is refused anywhere."""
    monkeypatch.delenv("HELPERS_DEVICE", raising=False)
    monkeypatch.setenv("CXX", sys.executable)  # it is there
    here = device.Machine("cpu", 2, "planted", "gloo", 2, 1)
    monkeypatch.setattr(device, "machine", lambda kind=None: here)
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1, "bfloat16": 1.5, "float16": 0.1})
    monkeypatch.setattr(sets, "trouble", lambda name, root: "is not there")
    monkeypatch.setattr(sets, "missing", lambda name, root, why: sets.DataMissing(f"{name} {why}"))


# -- the same in code and on the command line -------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
def test_the_code_makes_the_runs_of_the_button(choice, monkeypatch):
    calls = []
    shown = SimpleNamespace(show=lambda: calls.append("shown"))
    monkeypatch.setattr(helpers, "compare", lambda *args, **more: calls.append((args, more)) or shown, raising=False)
    exec(choice.code(), {})
    configs = choice.configs()
    expected = {} if choice.prediction is None else {"prediction": {configs[1].label: choice.prediction}}
    assert calls == [((configs,), expected), "shown"]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_command_lines_make_the_same_runs(choice, monkeypatch):
    ran = []
    monkeypatch.setattr(run, "run", lambda config, progress: ran.append(config))
    base, chosen = choice.configs()
    only = {name: one.default for name, one in config.SETTINGS.items() if one.only}
    alone = dict(strategy="baseline", nproc_per_node=1, precision="fp32", compiler="none", **only)
    assert chosen.but(**alone) == base == base.but(**alone), "the baseline differs in nothing else"
    *training, report = map(shlex.split, choice.commands())
    for words in training:
        assert words[:4] == ["python", "-m", "helpers", "train"]
        assert cli.main(words[3:]) == 0
    assert ran == choice.configs() and report == ["python", "-m", "helpers", "report"]


def test_only_what_differs_from_the_defaults_is_said():
    assert Choice(length=1).code().splitlines()[2:4] == [
        'baseline = helpers.RunConfig(schedule="cooldown")',
        'choice = baseline.but(strategy="ddp", nproc_per_node=2)',
    ]
    assert Choice(length=1).commands()[1] == "python -m helpers train --schedule=cooldown --nproc_per_node=2"
    assert max(map(len, replace(CHOICES[-1], prediction=1.123).code().splitlines())) < 120


# -- what can be, and what cannot -----------------------------------------------------------


def every_choice():
    lists = (config.MODELS, config.DATA, (1, 2), ("ddp", "data_parallel"), config.PRECISIONS, config.COMPILERS)
    lengths = cycle([(64, 4, "epochs"), (2, 60, "steps"), (640, 1, "epochs")])  # no list's length is a multiple of 3
    for chosen, (batch, length, unit) in zip(product(*lists), lengths, strict=False):
        yield Choice(*chosen, batch=batch, length=length, unit=unit)


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long)])
def test_every_choice_is_either_sound_or_refused_with_what_to_change(step):
    refused = {}
    for choice in islice(every_choice(), 0, None, step):
        refusal = choice.refusal()
        if refusal is None:
            for one in choice.configs():
                one.check_machine()
            compile(choice.code(), "code", "exec")
            assert len(choice.commands()) == 3 and page.verdict(choice, None)
        else:
            assert refusal.reason and all(noun(name) in str(refusal) for name in refusal.settings)
            refused.setdefault(refusal.settings, choice)
    assert {name for settings in refused for name in settings} == {
        "model",
        "data",
        "ranks",
        "strategy",
        "precision",
        "compiler",
        "batch",
        "length",
    }


@pytest.mark.parametrize("setting", ["model", "data", "ranks", "strategy", "precision", "compiler", "batch", "length"])
def test_a_planted_value_is_refused_and_never_an_exception(setting):
    for value in (None, "", "no such", -1, 0, 3, 1.5, float("nan"), True, ["x"], {}, object, 10**30):
        refusal = replace(Choice(), **{setting: value}).refusal()
        if refusal is None:
            assert setting == "length" and isinstance(value, int) and value >= 1
        else:
            assert setting in refusal.settings and refusal.reason, value


@pytest.mark.parametrize(
    "choice, settings, words",
    [
        (Choice(batch=65), ("ranks", "batch"), "The nearest that can: 64 or 66"),
        (Choice(batch=0), ("batch",), "1 or more"),
        (Choice(ranks=3, batch=66), ("ranks",), "this machine has 2 cpu devices"),
        (Choice(ranks=1), ("ranks", "precision", "compiler"), "nothing to compare"),
        (Choice(ranks=1, strategy="data_parallel"), ("ranks", "precision", "compiler"), "nothing to compare"),
        (Choice(strategy="data_parallel", compiler="inductor"), ("strategy", "compiler"), "choose 'ddp'"),
        (Choice(precision="fp16-masters", compiler="xla"), ("precision",), "not offered with XLA"),
        (Choice(data="cifar10"), ("data",), "cifar10 is not there"),
        (Choice(batch=1438), ("batch", "data"), "1,437 samples"),
        (Choice(model="transformer", data="imagenet-mock"), ("model", "data"), "images of 224×224"),
        (Choice(model="resnet18", batch=2), ("batch", "ranks", "model"), "one image of 32×32 on a device"),
        (Choice(batch=1000), ("length", "batch"), "this makes 4 steps of training, and a speed-up takes 8"),
        (Choice(length=7, unit="steps"), ("length",), "8 steps would do"),
        (Choice(length=2, compiler="auto"), ("length", "batch", "compiler"), "3 epochs would do"),
        (Choice(unit="days"), ("length",), "epochs or steps"),
        (Choice(more=dict(shard="grad_op")), ("shard", "strategy"), "only strategy 'fsdp' can do, not 'ddp'"),
        (Choice(strategy="zero1", more=dict(offload=True)), ("offload", "strategy"), "only strategy 'fsdp' can do"),
        (Choice(strategy="fsdp", more=dict(shard="hybrid")), ("shard",), "2 rank(s) on 1 host(s) do not divide so"),
        (Choice(prediction=0), ("prediction",), "such as 1.8"),
        (Choice(prediction=float("inf")), ("prediction",), "such as 1.8"),
        (Choice(prediction="fast"), ("prediction",), "leave the field empty"),
    ],
)
def test_a_refusal_names_what_to_change_and_why(choice, settings, words):
    refusal = choice.refusal()
    assert (set(refusal.settings), words in refusal.reason) == (set(settings), True), refusal
    if settings == ("length",) and choice.unit == "steps" or "would do" in words:
        enough = int(refusal.reason.rpartition("; ")[2].split()[0])
        assert replace(choice, length=enough).refusal() is None and replace(choice, length=enough - 1).refusal()


def test_the_tuner_has_chosen_before_steps_are_timed():
    """The longest race there can be: every plan is sound, and all are equally fast."""
    racers = [Candidate(Plan(backend, layout)) for backend in ("eager", "inductor") for layout in (False, True)]
    racers[0].status = "baseline"
    longest = Trials(racers, compiled.ROUNDS, min_gain=1.02)
    for racer in racers:
        racer.samples = dict.fromkeys(range(1, compiled.ROUNDS + 1), 1.0)
    longest.end_stage()
    least = len(longest.turns) + 1 + 3 + 5  # the choice, the warm-up, a median
    long = Choice(compiler="auto", length=least, unit="steps")
    assert long.refusal() is None and f"takes {least}" in replace(long, length=least - 1).refusal().reason


def test_what_the_machine_lacks_is_refused(monkeypatch):
    assert Choice(precision="fp16-mixed").refusal() is None
    assert "will be slower than fp32" in page.verdict(Choice(precision="fp16-mixed"), None)
    assert "Mind" not in page.verdict(Choice(precision="bf16-mixed"), None)
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1})
    assert Choice(precision="fp16-mixed").refusal().settings == ("precision",)
    assert "float16, which cpu devices here cannot" in str(Choice(precision="fp16-mixed").refusal())
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert Choice(compiler="inductor").refusal().settings == ("compiler",) and Choice(compiler="auto").refusal() is None
    assert "no no-such-compiler" in Choice(compiler="inductor").refusal().reason


def test_the_environment_of_xla(monkeypatch, tmp_path):
    monkeypatch.setenv("HELPERS_XLA_PYTHON", str(tmp_path / "none"))
    refusal = Choice(compiler="xla").refusal()
    assert refusal.settings == ("compiler",) and "make xla" in refusal.reason
    (tmp_path / "none").touch(0o755)
    assert Choice(compiler="xla").refusal() is None
    gpus = device.Machine("cuda", 2, "planted", "nccl", 8, 4)
    monkeypatch.setattr(device, "machine", lambda kind=None: gpus)
    assert "two devices would be compared" in Choice(compiler="xla").refusal().reason


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.undo()
    absent = next(kind for kind in ("cuda", "npu", "mps") if kind != device.accelerator_kind())
    assert Choice(device=absent).refusal().settings == ("device",)
    with pytest.raises(ValueError, match=f"this machine has no {absent} device"):
        form(device=absent)


@pytest.mark.parametrize(
    "machine, usual",
    [
        (device.Machine("cpu", 2, "", "gloo", 2, 1), None),
        (device.Machine("cpu", 2, "", "gloo", 2, 1), "cuda"),
        (device.Machine("cpu", 3, "", "gloo", 3, 1), None),
        (device.Machine("cpu", 8, "", "gloo", 64, 8), None),
        (device.Machine("cuda", 1, "", "nccl", 8, 8), "cuda"),
        (device.Machine("cuda", 8, "", "nccl", 64, 8), "cuda"),
        (device.Machine("mps", 1, "", "gloo", 8, 8), "mps"),
    ],
)
@pytest.mark.parametrize("formats", [{"float32": 1}, {"float32": 1, "float16": 2}])
def test_what_it_begins_with_is_possible_on_any_machine(machine, usual, formats, monkeypatch):
    monkeypatch.setattr(device, "machine", lambda kind=None: machine)
    monkeypatch.setattr(device, "accelerator_kind", lambda: usual)
    monkeypatch.setattr(device, "dtypes", lambda kind=None: formats)
    choice = Choice.sensible()
    assert choice.refusal() is None and choice.ranks == machine.count
    assert (choice.device == "cpu") == (usual == "cuda" and machine.kind == "cpu")
    assert ('device="cpu"' in choice.code()) == (choice.device == "cpu") == ("--device=cpu" in choice.commands()[1])


def test_the_size_of_a_set_that_is_here_counts(monkeypatch):
    monkeypatch.setattr(sets, "trouble", lambda name, root: None)
    monkeypatch.setattr(sets, "training_images", lambda name: 100)
    assert "100 samples" in Choice(batch=128).refusal().reason and Choice(data="cifar10", length=9).refusal() is None
    assert steps_of(RunConfig(epochs=3)) == 3


def test_a_factor_as_people_write_it():
    assert [from_words(typed) for typed in (" ", "1.8", "1,8×", "2 times", "3x")] == [None, 1.8, 1.8, 2, 3]
    with pytest.raises(ValueError):
        from_words("1.8, or so")


# -- the widgets ----------------------------------------------------------------------------


class Handle:
    """What compare(background=True) returns: a run that fails when it was looked at for the third time."""

    def __init__(self, error):
        self.status, self.error, self.asked = "queued", error, 0

    def result(self, timeout=None):
        self.asked += 1
        self.status = "running" if self.asked < 3 else "failed"
        raise TimeoutError if self.asked < 3 else self.error


@pytest.fixture
def calls(monkeypatch):
    """Calls of compare; each starts what `calls.next` is."""

    class Calls(list):
        next = Handle(RuntimeError("nothing was trained"))

    calls = Calls()

    def compare(*args, **more):
        calls.append((args, more))
        if isinstance(calls.next, Exception):
            raise calls.next
        return calls.next

    monkeypatch.setattr(ladder, "compare", compare)
    return calls


def test_each_control_changes_the_choice_and_what_is_shown():
    made = Form()
    assert made.choice == Choice.sensible() and not made.button.disabled
    for name, value in dict(
        model="silunet",
        data="mock",
        ranks=1,
        precision="bf16-mixed",
        compiler="inductor",
        batch=32,
        length=99,
        unit="steps",
    ).items():
        shown = made.blocks.value
        made.controls[name].value = value
        assert getattr(made.choice, name) == value
        assert made.blocks.value != shown or name == "ranks"  # one device in fp32 would be the baseline, for a moment
    assert "model=&quot;silunet&quot;" in made.blocks.value and "--precision=bf16-mixed" in made.blocks.value
    assert made.controls["strategy"].disabled and "99 steps" in made.verdict.value
    controls = [*made.controls.values(), *made.more.values(), made.prediction, made.button]
    assert all(control.description for control in controls)
    made.more["momentum"].value, made.more["augment"].value = "0.5", False
    assert all(one.momentum == 0.5 and not one.augment for one in made.choice.configs())
    made.more["momentum"].value = "much"
    assert made.choice.refusal().settings == ("momentum",) and made.button.disabled


@needs_fsdp
def test_what_only_sharded_ranks_can_do_is_the_choice_s_alone():
    made = Form()
    made.more["shard"].value = "grad_op"
    assert made.button.disabled and "choose &#x27;fsdp&#x27;" in made.verdict.value
    made.controls["strategy"].value, made.more["activation_checkpointing"].value = "fsdp", "selective"
    assert not made.button.disabled and "sharding grad_op" in made.verdict.value
    base, chosen = made.choice.configs()
    assert (base.shard, chosen.shard) == ("full", "grad_op")
    assert base.activation_checkpointing == chosen.activation_checkpointing == "selective"


def test_the_button_runs_what_the_code_says(calls):
    made = Form()
    made.controls["batch"].value, made.prediction.value = 128, "1,7"
    assert "prediction={choice.label: 1.7}" in made.blocks.value
    made.button.click()
    configs = made.choice.configs()
    assert calls == [((configs,), dict(prediction={"DDP ×2": 1.7}, name="choose and run", background=True))]
    made.prediction.value = ""
    made.button.click()
    assert calls[1][1]["prediction"] is None and len(made.runs.children) == 2


def test_what_is_refused_cannot_be_run(calls, monkeypatch):
    made = Form()
    made.controls["batch"].value = 65
    assert made.button.disabled and 'role="alert"' in made.verdict.value and "64 or 66" in made.verdict.value
    assert "change the ranks or the global batch" in made.verdict.value and "<pre" not in made.blocks.value
    made.button.click()  # as a message that was under way would
    assert calls == [] and made.runs.children == ()
    made.controls["batch"].value = 66
    assert not made.button.disabled and 'role="status"' in made.verdict.value and "<pre" in made.blocks.value
    made.prediction.value = "<b>soon</b>"
    assert made.button.disabled and "<b>" not in made.verdict.value and "&lt;b&gt;" in made.verdict.value
    made.prediction.value, made.controls["precision"].value = "2", "fp16-mixed"
    assert not made.button.disabled
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1})
    made.button.click()  # a format that has gone since the last look
    assert calls == [] and made.runs.children == () and made.button.disabled


@pytest.mark.parametrize(
    "end, words",
    [
        (Handle(RuntimeError("rank 1: ValueError: <no>")), "rank 1: ValueError: &lt;no&gt;"),
        (Handle(RunStopped("it was stopped")), "was stopped; what it recorded until then is kept"),
        (ValueError("the set has gone"), "the set has gone"),
        (OSError(28, "No space left on device"), "No space left"),
    ],
)
def test_an_end_without_a_result_is_shown(calls, end, words, monkeypatch):
    calls.next = end
    monkeypatch.setattr(ipywidgets.Output, "__exit__", lambda *_: True)  # as in a kernel, it keeps exceptions
    made = Form()
    made.button.click()
    head, _, result = made.runs.children[0].children
    assert wait_until(lambda: words in head.value, 300) is not None and result.value == "", head.value


# -- one that is real -----------------------------------------------------------------------


def test_a_choice_becomes_a_table_a_figure_and_records(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")
    made = Form("cpu")
    for name, value in dict(ranks=2, batch=16, length=8, unit="steps").items():
        made.controls[name].value = value
    made.prediction.value = "1.5"
    made.button.click()
    head, _, result = made.runs.children[0].children
    assert wait_until(lambda: result.value, 300) is not None, head.value
    assert "Done: a step of DDP ×2 was" in result.value and "you expected 1.50×" in result.value
    assert "Accuracy" in result.value and "<table" in result.value
    assert 'src="data:image/png;base64,' in result.value and 'alt="Speed-up in images' in result.value
    left = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*.json")]
    assert {record["label"]: record["prediction"] for record in left} == {"baseline": None, "DDP ×2": 1.5}
    assert all(record["group"].endswith("choose and run") and record["status"] == "completed" for record in left)


def test_the_outcome_in_a_sentence():
    made = ladder.Comparison([records.baseline(), records.planted(speed=1.82, prediction=1.9, accuracy=0.88)])
    said = "✓ Done: a step of DDP ×2 was 1.82× as fast as the baseline's; you expected 1.90×."
    assert page.outcome(made) == f"{said} Accuracy 88.0%, baseline 90.0%."
    assert said in html.unescape(page.result(made))
    made = ladder.Comparison([records.baseline(), records.failed("RankError: rank 1: out of memory")])
    assert page.outcome(made) == "✗ DDP ×2: failed."
    assert "RankError: rank 1: out of memory</pre>" in page.result(made)


# -- where it is shown ----------------------------------------------------------------------


def test_without_widgets_it_prints_the_choice_it_would_begin_with(monkeypatch, capsys):
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")
    assert form() is None
    text = capsys.readouterr().out
    first = Choice.sensible()
    assert all(line in text for line in [*first.code().splitlines(), *first.commands()]) and "two runs of" in text
    assert "<" not in text


def test_in_a_notebook_it_is_a_widget(monkeypatch):
    displayed, made = [], []
    monkeypatch.setattr(widgets, "Form", lambda kind: made.append(Form(kind)) or made[0])
    monkeypatch.delenv("HELPERS_PROGRESS", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", "report.ipynb")
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: displayed.append(bundle))
    assert form() is None
    (bundle,) = displayed
    assert "python -m helpers train" in bundle["text/plain"]  # for viewers that have no widgets
    box = made[0].box
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == box.model_id
    assert "helpers-form" in box._dom_classes
    style = box.children[0].value  # the theme's colours; keys that JupyterLab would take for its own
    assert "var(--jp-" in style and "data-lm-suppress-shortcuts" in style
