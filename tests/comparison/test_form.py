"""The form: what it would run is what its code and its command lines run; what cannot be is refused, and marked."""

import asyncio
import json
import shlex
from types import SimpleNamespace

import pytest

import helpers
from helpers import __main__ as cli
from helpers import config, device
from helpers.comparison import form, run
from helpers.config import ConfigError

TWO = dict(strategy="ddp", nproc_per_node=2)
CHOICES = [
    TWO,
    dict(precision="bf16"),
    dict(compiler="inductor", steps=64),
    dict(strategy="data_parallel", nproc_per_node=2, global_batch=128),
    dict(strategy="fsdp", nproc_per_node=2, shard="grad_op", offload=True, activation_checkpointing="full"),
    dict(**TWO, model="silunet", data="mock", augment=False, channels_last=True, weight_decay=0.0, threads=1),
]


@pytest.fixture(autouse=True)
def a_machine_that_can_do_everything(monkeypatch):
    """Two CPU devices and every format: what is refused is refused anywhere."""
    monkeypatch.delenv("HELPERS_DEVICE", raising=False)
    here = device.Machine("cpu", 2, "planted", "gloo", 2, 1)
    monkeypatch.setattr(device, "machine", lambda kind=None: here)
    monkeypatch.setattr(device, "accelerator_kind", lambda: None)
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1, "bfloat16": 1.5, "float16": 0.1})


@pytest.mark.parametrize("chosen", CHOICES)
def test_the_code_and_the_command_lines_make_the_runs_of_the_button(chosen, monkeypatch):
    calls, ran = [], []
    shown = SimpleNamespace(show=lambda: calls.append("shown"))
    monkeypatch.setattr(helpers, "compare", lambda *args, **more: calls.append((args, more)) or shown, raising=False)
    monkeypatch.setattr(run, "run", lambda config, progress, on: ran.append(config))
    base, choice = both = form.configs(chosen)
    assert base.but(**form._split(chosen)[1]) == choice and base.strategy == "baseline" and base.precision == "fp32"
    lines = [line.strip() for line in form.as_code(chosen, 1.7).splitlines()]
    exec("\n".join(lines[lines.index("import helpers") : lines.index("comparison.show()") + 1]), {})
    assert calls == [((both,), {"prediction": {choice.label: 1.7}}), "shown"]
    *training, report = (shlex.split(line)[3:] for line in lines if line.startswith("python"))
    assert [cli.main(words) for words in training] == [0, 0] and report == ["report"]
    assert ran == both


@pytest.mark.parametrize(
    "chosen, fields",
    [
        ({}, {"precision", "compiler"}),
        (dict(**TWO, steps=7), {"steps"}),
        (dict(**TWO, global_batch=65), {"global_batch"}),
        (dict(**TWO, global_batch="many"), {"global_batch"}),
        (dict(**TWO, shard="grad_op"), {"shard", "strategy"}),
        (dict(strategy="data_parallel", nproc_per_node=2, compiler="inductor"), {"compiler", "strategy"}),
    ],
)
def test_what_cannot_be_says_which_settings_to_change(chosen, fields):
    wrong = form.problem(chosen)
    assert isinstance(wrong, (ValueError, TypeError)) and str(wrong)
    if isinstance(wrong, ConfigError):
        assert fields <= set(wrong.fields)


@pytest.mark.parametrize("name", form.FIRST)
def test_a_planted_value_is_refused_and_never_an_exception(name):
    for value in ("", "no such", -1, 1.5, float("nan"), ["x"]):
        assert form.problem({**TWO, name: value}) is not None, value


# -- the widgets ----------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """Calls of compare; each raises, as for a set that could not be made."""
    calls = []

    def compare(*args, **more):
        calls.append((args, more))
        raise OSError("No space left: <b>")

    monkeypatch.setattr(form, "compare", compare)
    return calls


def test_each_setting_has_a_control_that_changes_the_choice():
    made = form.Form()
    assert made.chosen == form.first_choice() and not made.button.disabled
    plain = {name for name, one in config.SETTINGS.items() if one.type is not object}
    assert {"momentum", "shard", "augment", "schedule"} <= set(made.controls) <= plain
    for name, value in dict(model="silunet", nproc_per_node=1, strategy="baseline", compiler="inductor").items():
        made.controls[name].value = value
    made.controls["momentum"].value, made.controls["augment"].value = "0.5", False
    assert "silunet" in made.code.value and "--compiler=inductor" in made.code.value
    assert all(one.momentum == 0.5 and not one.augment for one in form.configs(made.chosen))
    assert all(control.description for control in made.controls.values())


def test_what_is_refused_is_marked_and_cannot_be_run(calls, monkeypatch):
    made = form.Form()
    monkeypatch.setattr(form, "problem", lambda chosen: ConfigError(["steps"], "too few: <b>"))
    made.controls["steps"].value = "9"
    assert made.button.disabled and 'role="alert"' in made.verdict.value and "&lt;b&gt;" in made.verdict.value
    assert made.controls["steps"].layout.border_top and not made.controls["model"].layout.border_top
    made.button.click()  # as a message that was under way would
    assert calls == [] and made.runs.children == ()


def test_the_button_compares_what_is_chosen(calls):
    made = form.Form()
    made.prediction.value = 1.7
    assert "prediction={choice.label: 1.7}" in made.code.value
    made.button.click()
    both = form.configs(made.chosen)
    assert calls == [((both,), dict(prediction={both[1].label: 1.7}, name=form.NAME, background=True))]
    assert "No space left: &lt;b&gt;" in made.runs.children[0].children[1].value


def test_a_choice_becomes_a_table_a_figure_and_records(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")

    async def press():
        made = form.Form("cpu")
        for name, value in dict(
            strategy="ddp", nproc_per_node=2, compiler="none", global_batch="16", steps="8"
        ).items():
            made.controls[name].value = value
        made.prediction.value = 1.5
        made.button.click()
        await asyncio.gather(*made.tasks)
        return made.runs.children[0].children[1].value

    shown = asyncio.run(press())
    assert "<table" in shown and 'src="data:image/png;base64,' in shown
    left = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*.json")]
    assert {record["label"]: record["prediction"] for record in left} == {"baseline": None, "DDP ×2": 1.5}
    assert all(record["group"].endswith(form.NAME) and record["status"] == "completed" for record in left)
