"""What the report says of records, which records it names for it, and what it does not say."""

import re

import pytest
from records import baseline, curve, failed, ladder, on, planted

from helpers import report
from helpers.comparison.ladder import Comparison
from helpers.records import read
from helpers.report import text
from helpers.report.report import Report

SLOW = {"precision": "bf16-mixed", "dtype": "bfloat16", "conv_ratio": 0.09, "faster": None}


def made(*records, target=0.9):
    return Report(read.Found([{**read.upgraded(r), "file": "a.json"} for r in records]), target)


def said(*records, target=0.9):
    """{text: ids} of all sentences about the only ladder of these records."""
    found = made(*records, target=target)
    ((only,),) = [site.ladders for site in found.sites]
    return {sentence.text: sentence.runs for sentence in found.sentences(only)}


def told(*records):
    """The sentences about the runs after a baseline, as one text."""
    return " ".join(text for text, runs in said(baseline(), *records).items() if runs != ("id-baseline",))


def one(sentences, word):
    """The only sentence with `word` in it, and the records behind it."""
    (found,) = [(text, runs) for text, runs in sentences.items() if word in text]
    return found


def with_measured(record, **measured):
    record["measured"].update(measured)
    return record


def half(speed, advice=None, **settings):
    return {**planted("baseline", 1, speed, precision="bf16", **settings), "advice": advice}


def alone(speed, **settings):
    """A run of one device with the share of the batch that one of two devices has."""
    return planted("baseline", 1, speed, global_batch=32, label="one share", **settings)


def compiled(speed, compile_s=20.0, plan="inductor", steps=23):
    run = planted("baseline", 1, speed, compiler="inductor", label="compiled")
    return with_measured(run, compiler={"plan": plan, "compile_s": compile_s}, steps=steps)


def seeds(*accuracies):
    return [{**planted(devices=4, accuracy=a, seed=s), "run_id": f"s{s}"} for s, a in enumerate(accuracies)]


# -- what one sentence says, and the records behind it --------------------------------------

TWO, HALF, SHARE, COMPILED = ("id-DDP ×2", "id-baseline"), "id-baseline · bf16-mixed", "id-one share", "id-compiled"
LARGE = dict(global_batch=256)
UNKNOWN = planted("baseline", 1, accuracy=0.85, label="other")
UNKNOWN["config"]["dropout"] = 0.5
UNTRIED = half(0.8)
del UNTRIED["advice"]  # as in an older record
SAID = {  # records beside a baseline, a part of the only sentence about this, more parts of it, the ids behind it
    "faster": ([planted(speed=1.82)], "took 0.55", ["middle half 1.78× to 1.85×", "an efficiency of 91.0%"], TWO),
    "slower": ([planted(speed=0.5)], "was slower: it took 2.0 times", ["0.50×"], TWO),
    "as fast": ([planted(speed=1.01)], "DDP ×2 took about the baseline's time a step (1.01×, middle half", [], TWO),
    "within the noise": (
        [planted(speed=1.04)],
        "no difference beyond the noise: 1.04×",
        ["intervals of their medians overlap"],
        TWO,
    ),
    "another batch": ([planted(speed=1.5, global_batch=128)], "time an image", [], TWO),
    "slower although faster": (
        [planted(speed=1.8, start=5.0)],
        "slower, although its steps were faster",
        ["most of that start (5.0 s)"],
        TWO,
    ),
    "rounds": (
        [planted(speed=1.82), {**planted(speed=1.82), "run_id": "again"}],
        "took 0.55",
        [],
        ("id-DDP ×2", "again", "id-baseline"),
    ),
    "a failure": (
        [failed("RankError: rank 1 failed.\n\nTraceback (most recent call last):\n  …\nValueError: no data")],
        "DDP ×2 has no numbers to compare, its run failed: ValueError: no data.",
        [],
        TWO,
    ),
    "as accurate": ([planted()], "DDP ×2 is as accurate as the baseline: 90.0% of 1000 test images", [], TWO),
    "less accurate": (
        [planted(accuracy=0.85)],
        "85.0% of 1000 test images correctly, the baseline 90.0% (5.0 points less)",
        [],
        TWO,
    ),
    "no accuracy": (
        [planted(accuracy=None)],
        "Accuracy was not measured on both; the final loss of DDP ×2 is 1.42",
        [],
        TWO,
    ),
    "a setting that this version does not know": (
        [UNKNOWN],
        "dropout 0.5 instead of None",
        [],
        ("id-other", "id-baseline"),
    ),
    "what holds for several runs": (
        [planted(accuracy=0.85), planted(devices=4, accuracy=0.8)],
        "sums are rounded",
        [],
        TWO,
    ),
    "communication by DDP's clocks": (
        [with_measured(planted(), communication={"steps": 10, "exposed_s": 0.006, "hidden_s": 0.012})],
        "communication",
        ["6.0% of a step of DDP ×2 was communication that nothing hid", "another 11.9%", "mean of 10 steps"],
        TWO[:1],
    ),
    "communication by one share": (
        [planted(speed=1.8), alone(2.5)],
        "communication and waiting:",
        ["At most 28.0% of a step of DDP ×2"],
        ("id-DDP ×2", SHARE),
    ),
    "communication in the noise": (
        [planted(speed=1.8), alone(1.8)],
        "cannot be told from noise",
        [],
        ("id-DDP ×2", SHARE),
    ),
    "communication without a record that tells it": (
        [planted(speed=1.6), alone(2.5, precision="bf16")],
        "ideal scaling",
        ["20.0% of the time of DDP ×2", "would tell them apart"],
        TWO,
    ),
    "waiting for data": (
        [with_measured(planted(), input_wait_s={"median": 0.03, "q1": 0.03, "q3": 0.03})],
        "waiting for data",
        ["% of a step of DDP ×2 was spent"],
        TWO[:1],
    ),
    "a half format that pays": (
        [half(1.6, accuracy=0.89)],
        "bf16-mixed paid in baseline · bf16-mixed: 1.60× the speed of baseline",
        ["accuracy 89.0% beside 90.0%"],
        (HALF, "id-baseline"),
    ),
    "a slow half format": (
        [half(0.5, SLOW)],
        "did not pay",
        ["bfloat16 ran at 0.09 times the speed of fp32", "emulates it"],
        (HALF, "id-baseline"),
    ),
    "a half format that is not slow itself": (
        [half(0.8, "")],
        "did not pay",
        ["The format itself is not slow here"],
        (HALF, "id-baseline"),
    ),
    "a half format that was not tried": (
        [UNTRIED],
        "did not pay",
        ["accuracy 90.0% beside 90.0%)."],
        (HALF, "id-baseline"),
    ),
    "a larger batch that pays": (
        [half(0.8), planted("baseline", 1, 1.0, label="large", **LARGE), half(1.5, label="large half", **LARGE)],
        "did not pay",
        ["With 256 samples a step on a device it paid: 1.50×"],
        (HALF, "id-baseline", "id-large half", "id-large"),
    ),
    "a half format within the noise": (
        [half(1.02, SLOW)],
        "bf16-mixed made no difference beyond the noise",
        [],
        (HALF, "id-baseline"),
    ),
    "compiling that pays later": (
        [compiled(1.25)],
        "pays off after",
        ["20.0 s compiling", "after 996 steps", "did not pay yet"],
        (COMPILED, "id-baseline"),
    ),
    "compiling that paid": ([compiled(1.25, steps=5000)], "so it paid", [], (COMPILED, "id-baseline")),
    "compiling that never pays": ([compiled(0.9)], "compiling", ["never pays off"], (COMPILED, "id-baseline")),
    "a tuner that chose eager": ([compiled(1.0, plan="eager")], "compiling", ["stayed with eager"], None),
    "a larger batch": (
        [with_measured(planted(global_batch=128, accuracy=0.8), steps=11)],
        "global batch of 128 instead of 64",
        ["11 updates of the weights instead of 23 in as many epochs; accuracy 80.0% beside 90.0%"],
        TWO,
    ),
    "micro-batches": (
        [planted(speed=1.7, global_batch=128, accumulation=4)],
        "micro-batches of 16, and exchanges them once",
        ["gradients of 4"],
        None,
    ),
    "memory": (
        [with_measured(planted(), peak_memory_bytes=[300_000_000, 310_000_000])],
        "memory",
        ["DDP ×2 needed less", "310 MB in each of its 2 processes at most, baseline 600 MB"],
        TWO,
    ),
    "hosts": (
        [with_measured(planted(), hosts=[{"name": "a", "ranks": [0]}, {"name": "b", "ranks": [1]}])],
        "DDP ×2 ran on 2 hosts: a (1 rank), b (1 rank).",
        [],
        TWO[:1],
    ),
    "seeds": (seeds(0.8, 0.9, 0.7), "mean of 3 seeds", ["70.0% to 90.0%"], ("s0", "s1", "s2")),
}


@pytest.mark.parametrize("about", SAID)
def test_a_sentence_says_it_and_names_its_records(about):
    records, word, more, ids = SAID[about]
    text, runs = one(said(baseline(), *records), word)
    assert [part for part in more if part not in text] == []
    assert runs == (ids or runs) != ()


@pytest.mark.parametrize(
    "records, absent",
    [
        ([planted(speed=1.82)], ["slower"]),
        ([planted(speed=1.04)], ["slower", "ideal: an efficiency"]),
        ([planted(speed=1.8, start=0.0)], ["although"]),
        ([with_measured(planted(speed=1.8), steps=3)], ["whole run"]),
        ([planted(accuracy=None)], ["settings"]),
        ([planted(speed=1.6), alone(2.5, precision="bf16")], ["At most"]),
        ([planted()], ["waiting for data", "memory"]),
        ([half(0.8)], ["emulates"]),
        ([UNTRIED], ["The format itself"]),
        ([half(1.02, SLOW)], ["convolution"]),
    ],
)
def test_what_no_record_shows_is_not_said(records, absent):
    text = " ".join(said(baseline(), *records))
    assert not [part for part in absent if part in text]


def test_a_run_that_computes_otherwise_has_no_efficiency():
    text = told(planted(speed=1.82), planted(speed=3.1, precision="bf16"))
    assert re.search(r"O1-bf16 took 0.32 of the baseline's time a step \(3.10×, middle half [\d.× to]+\)\.", text)


@pytest.mark.parametrize(
    ("prediction", "verdict"),
    [(1.85, "right within 5%"), (2.7, "50% too high"), (0.9, "50% too low"), (18, "10 times what was measured")],
)
def test_prediction_against_measurement(prediction, verdict):
    text = told(planted(speed=1.8, prediction=prediction))
    assert "was predicted for DDP ×2 and 1.80× measured: the prediction was " + verdict in text


def test_without_a_baseline_no_speed_up_is_told():
    found = said({**planted(speed=1.8), "group": ""})
    text, runs = one(found, "no completed run of one device")
    assert text.startswith("DDP ×2 took 55.8 ms a step") and runs == ("id-DDP ×2",)
    assert "faster" not in " ".join(found) and "slower" not in " ".join(found)
    assert "The run of DDP ×2 failed: RankError" in one(said({**failed(), "group": ""}), "failed")[0]
    assert "no eager run" in one(said(baseline(global_batch=128), compiled(2.0)), "compiling")[0]


@pytest.mark.parametrize(
    "settings, words, not_said",
    [
        (dict(strategy="ddp"), "sums are rounded in another order, and BatchNorm", "other settings than"),
        (dict(strategy="ddp", sync_batch_norm=True), "SyncBatchNorm True instead of False", "rounded"),
        (dict(strategy="ddp", channels_last=True), "differ in strategy, devices, channels last", "rounded"),
        (dict(lr=0.1, epochs=3), "epochs 3 instead of 1, learning rate 0.1 instead of 0.05", "rounded"),
        (
            dict(augment=False, loss=sum),
            "loss sum instead of cross_entropy, augmentation False instead of True",
            "rounded",
        ),
        (
            dict(channels_last=True),
            "share all settings that change what is learned; they differ in channels last.",
            "sums",
        ),
        (dict(accumulation=2), "local batch 32 instead of 64", "sums"),
        (dict(warmup_steps=4), "", "settings"),
    ],
)
def test_a_difference_in_accuracy_names_what_differs_and_no_cause(settings, words, not_said):
    devices = 2 if settings.get("strategy") else 1
    other = planted(**{"strategy": "baseline", **settings}, devices=devices, accuracy=0.85, label="other")
    text = told(other)
    assert words in text and not_said not in text and "because" not in text


def test_time_to_accuracy_can_reverse_the_order():
    first = with_measured(baseline(), curve=curve(0.5, 0.92))
    fast = with_measured(planted(speed=1.8), curve=curve(0.5, 0.8, 0.9))
    text, runs = one(said(first, fast), "so it came later")
    assert "DDP ×2 reached 90.0% test accuracy after 3.00 s of training, baseline after 2.00 s (0.67×" in text
    assert "slower to the goal" in text and runs == ("id-DDP ×2", "id-baseline")
    assert "did not reach 95.0% test accuracy; its best was 90.0%" in " ".join(said(first, fast, target=0.95))


# -- several machines ---------------------------------------------------------------------


THERE = {"name": "Other CPU"}


def test_machines_are_compared_each_with_its_own_baseline():
    report = made(baseline(), planted(speed=1.8), *on(THERE, baseline(), planted(speed=0.6)))
    text, runs = next(sentence for sentence in report.between if "DDP" in sentence.text)
    assert "faster, 1.80× baseline's speed on Some CPU, 2 cores" in text
    assert "slower, 0.60× baseline's speed on Other CPU, 2 cores" in text and "does not on another" in text
    assert set(runs) == {"id-DDP ×2", "id-baseline", f"id-DDP ×2{THERE}", f"id-baseline{THERE}"}
    noise = made(baseline(), planted(speed=1.8), *on(THERE, baseline(), planted(speed=1.04)))
    assert not any("does not on another" in sentence.text for sentence in noise.between)


def test_another_training_is_not_set_beside():
    assert made(baseline(), *on(THERE, baseline(epochs=7), planted(epochs=7))).between == []
    assert made(baseline(), planted()).between == []


# -- text ---------------------------------------------------------------------------------


def test_text_fits_a_terminal():
    records = [*ladder().records, {**failed(devices=4), "run_id": "x" * 300}]
    records += [planted(label="a long name " * 8), planted(label="四个设备的运行")]
    lines = report.of(Comparison(records)).text().splitlines()
    assert max(map(text.width, lines)) <= 100 and "1 machine, 1 of them not completed" in lines[0]
    head = next(place for place, line in enumerate(lines) if line.startswith("run"))
    assert "speed-up" in lines[head] and "accuracy" in lines[head]
    end = text.width(lines[head][: lines[head].index("speed-up")]) + len("speed-up")
    for line, factor in zip(lines[head + 2 :], ("1.00×", "0.55×", "1.82×", "–"), strict=False):
        assert line[:end].endswith(factor)
    assert any(line.startswith("- DDP ×2 took 0.55 of the baseline's") for line in lines)


def test_without_accuracy_the_loss_stays_beside_the_speed():
    records = [baseline(accuracy=None), planted(accuracy=None, label="a name that is forty characters long ...")]
    head = next(line for line in report.of(Comparison(records)).text().splitlines() if line.startswith("run"))
    assert "final loss" in head and "accuracy" not in head


@pytest.mark.parametrize("target", [0, 1.1, True, "90%", None, float("nan")])
def test_a_bad_target_is_refused(target):
    with pytest.raises(ValueError, match="share of one"):
        report.everything(target=target)
