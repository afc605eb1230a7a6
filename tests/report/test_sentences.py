"""What the report says of records, which records it names for it, and what it does not say."""

import re

import pytest
from records import MACHINE, baseline, failed, ladder, planted

from helpers import report
from helpers.comparison.ladder import Comparison
from helpers.records import read
from helpers.report import text
from helpers.report.report import Report

NAMES = ("baseline", "DDP ×2", "baseline · O1-bf16", "DDP ×4")
SLOW = (
    "O1-bf16 will be slower than fp32 on this device: a convolution, forward and backward, ran at 0.09 times the speed "
    "in bfloat16 when it was tried just now; no half format is faster here"
)


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


def curve(*points):
    return [
        {"epoch": k, "step": 10 * k, "train_s": s, "accuracy": a, "count": 1000, "loss": 1.0, "correct": 1}
        for k, (s, a) in enumerate(points, 1)
    ]  # fmt: skip


def with_measured(record, **measured):
    record["measured"].update(measured)
    return record


def half(speed, advice="", **settings):
    return {**planted("baseline", 1, speed, precision="bf16", **settings), "advice": advice}


# -- speed --------------------------------------------------------------------------------


def test_every_sentence_names_its_records():
    found = said(baseline(), planted(speed=1.8), half(0.5, SLOW), failed(devices=4))
    assert all(runs and set(runs) <= {f"id-{n}" for n in NAMES} for runs in found.values())


def test_faster_slower_and_neither():
    text, runs = one(said(baseline(), planted(speed=1.82)), "took 0.55")
    assert runs == ("id-DDP ×2", "id-baseline") and "middle half 1.78× to 1.85×" in text
    text, runs = one(said(baseline(), planted(speed=0.5)), "was slower: it took 2.0 times")
    assert runs == ("id-DDP ×2", "id-baseline") and "0.50×" in text
    assert "an efficiency of 91.0%" in told(planted(speed=1.82)) and "slower" not in told(planted(speed=1.82))
    assert "DDP ×2 took about the baseline's time a step (1.01×, middle half" in told(planted(speed=1.01))
    doubtful = told(planted(speed=1.04))
    assert "no difference beyond the noise: 1.04×" in doubtful and "slower" not in doubtful
    assert "middle halves of their steps overlap" in doubtful and "ideal: an efficiency" not in doubtful


def test_a_run_that_computes_otherwise_has_no_efficiency():
    text = told(planted(speed=1.82), planted(speed=3.1, precision="bf16"))
    assert re.search(r"O1-bf16 took 0.32 of the baseline's time a step \(3.10×, middle half [\d.× to]+\)\.", text)


def test_other_batches_are_compared_by_image():
    assert "time an image" in told(planted(speed=1.5, global_batch=128))


def test_a_faster_step_in_a_slower_run_is_pointed_out():
    text = told(planted(speed=1.8, start=5.0))
    assert "slower, although its steps were faster" in text and "most of that start (5.0 s)" in text
    assert "although" not in told(planted(speed=1.8, start=0.0))


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


def test_a_failed_run_is_named_with_its_error():
    error = "RankError: rank 1 failed. The traceback:\n\nTraceback (most recent call last):\n  …\nValueError: no data"
    assert "DDP ×2 has no numbers to compare, its run failed: ValueError: no data." in told(failed(error))
    assert "The run of DDP ×2 failed: RankError" in one(said({**failed(), "group": ""}), "failed")[0]


def test_a_shorter_run_is_not_called_a_faster_one():
    short = with_measured(planted(speed=1.8), steps=3)
    assert not any("whole run" in text for text in said(baseline(), short))


def test_rounds_are_all_named():
    again = {**planted(speed=1.82), "run_id": "again"}
    assert one(said(baseline(), planted(speed=1.82), again), "took 0.55")[1] == ("id-DDP ×2", "again", "id-baseline")


# -- accuracy: what differs, and no cause that no record shows --------------------------------


def test_accuracy_beside_the_baseline():
    assert "DDP ×2 is as accurate as the baseline: 90.0% of 1000 test images" in told(planted())
    text = told(planted(accuracy=0.85))
    assert "85.0% of 1000 test images correctly, the baseline 90.0% (5.0 points less)" in text
    text = told(planted(accuracy=None))
    assert "Accuracy was not measured on both; the final loss of DDP ×2 is 1.42" in text
    assert "settings" not in text


@pytest.mark.parametrize("settings, words, not_said", [
    (dict(strategy="ddp"), "sums are rounded in another order, and BatchNorm", "other settings than"),
    (dict(strategy="ddp", sync_batch_norm=True), "SyncBatchNorm True instead of False", "rounded"),
    (dict(strategy="ddp", channels_last=True), "differ in strategy, devices, channels last", "rounded"),
    (dict(lr=0.1, epochs=3), "epochs 3 instead of 1, learning rate 0.1 instead of 0.05", "rounded"),
    (dict(augment=False, loss=sum), "loss sum instead of cross_entropy, augmentation False instead of True", "rounded"),
    (dict(channels_last=True), "share all settings that change what is learned; they differ in channels last.", "sums"),
    (dict(accumulation=2), "local batch 32 instead of 64", "sums"),
    (dict(warmup_steps=4), "", "settings"),
])  # fmt: skip
def test_a_difference_in_accuracy_names_what_differs_and_no_cause(settings, words, not_said):
    devices = 2 if settings.get("strategy") else 1
    other = planted(**{"strategy": "baseline", **settings}, devices=devices, accuracy=0.85, label="other")
    text = told(other)
    assert words in text and not_said not in text and "because" not in text


def test_a_setting_that_this_version_does_not_know_may_change_anything():
    other = planted("baseline", 1, accuracy=0.85, label="other")
    other["config"]["dropout"] = 0.5
    assert "dropout 0.5 instead of None" in told(other)


def test_what_holds_for_several_runs_is_said_once():
    assert told(planted(accuracy=0.85), planted(devices=4, accuracy=0.8)).count("sums are rounded") == 1


# -- communication ------------------------------------------------------------------------


def test_communication_as_ddp_measured_it():
    clocks = {"steps": 10, "exposed_s": 0.006, "hidden_s": 0.012}
    run = with_measured(planted(speed=1.0), communication=clocks)
    text, runs = one(said(baseline(), run), "communication")
    assert "6.0% of a step of DDP ×2 was communication that nothing hid" in text and "another 11.9%" in text
    assert "mean of 10 steps" in text and runs == ("id-DDP ×2",)


def test_communication_bounded_by_the_share_of_one_device():
    alone = planted("baseline", 1, 2.5, global_batch=32, label="one share")
    text, runs = one(said(baseline(), planted(speed=1.8), alone), "communication and waiting:")
    assert text.startswith("At most 28.0% of a step of DDP ×2") and runs == ("id-DDP ×2", "id-one share")
    near = planted("baseline", 1, 1.8, global_batch=32, label="one share")
    assert "cannot be told from noise" in " ".join(said(baseline(), planted(speed=1.8), near))


def test_communication_is_not_claimed_without_a_record_that_backs_it():
    text, runs = one(said(baseline(), planted(speed=1.6)), "ideal scaling")
    assert text.startswith("20.0% of the time of DDP ×2") and "would tell them apart" in text
    other = planted("baseline", 1, 2.5, global_batch=32, label="another format", precision="bf16")
    assert not any("At most" in text for text in said(baseline(), planted(speed=1.6), other))


def test_waiting_for_data():
    run = with_measured(planted(), input_wait_s={"median": 0.03, "q1": 0.03, "q3": 0.03})
    assert "% of a step of DDP ×2 was spent waiting for data" in one(said(baseline(), run), "waiting for data")[0]
    assert not any("waiting for data" in text for text in said(baseline(), planted()))


# -- half formats -------------------------------------------------------------------------


def test_a_half_format_that_pays():
    text, runs = one(said(baseline(), half(1.6, accuracy=0.89)), "paid")
    assert "O1-bf16 paid in baseline · O1-bf16: 1.60× the speed of baseline" in text
    assert "accuracy 89.0% beside 90.0%" in text and runs == ("id-baseline · O1-bf16", "id-baseline")


def test_a_half_format_that_does_not_pay_and_what_its_record_knows_of_why():
    assert "bfloat16 ran at 0.09 times the speed of fp32" in one(said(baseline(), half(0.5, SLOW)), "did not pay")[0]
    assert "emulates it" in one(said(baseline(), half(0.5, SLOW)), "did not pay")[0]
    text = one(said(baseline(), half(0.8, "")), "did not pay")[0]
    assert "The format itself is not slow here" in text and "emulates" not in text
    unknown = half(0.8)
    del unknown["advice"]  # an older record: nothing was tried
    assert one(said(baseline(), unknown), "did not pay")[0].endswith("accuracy 90.0% beside 90.0%).")


def test_a_larger_batch_that_pays_is_named():
    large = dict(global_batch=256)
    more = planted("baseline", 1, 1.0, label="large", **large), half(1.5, label="large half", **large)
    text, runs = one(said(baseline(), half(0.8, ""), *more), "did not pay")
    assert "With 256 samples a step on a device it paid: 1.50×" in text and runs[-2:] == ("id-large half", "id-large")


def test_a_half_format_within_the_noise():
    text = one(said(baseline(), half(1.02, SLOW)), "O1-bf16 made")[0]
    assert "O1-bf16 made no difference beyond the noise" in text and "convolution" not in text


# -- compiler -----------------------------------------------------------------------------


def compiled(speed, compile_s=20.0, steps=23, **settings):
    run = planted("baseline", 1, speed, compiler="inductor", label="compiled", **settings)
    return with_measured(run, compiler={"plan": "inductor", "compile_s": compile_s}, steps=steps)


def test_when_compiling_pays():
    text, runs = one(said(baseline(), compiled(1.25)), "pays off after")
    assert "20.0 s compiling" in text and "after 996 steps" in text and "did not pay yet" in text
    assert runs == ("id-compiled", "id-baseline")
    assert "so it paid" in one(said(baseline(), compiled(1.25, steps=5000)), "pays off after")[0]


def test_when_compiling_never_pays():
    assert "never pays off" in one(said(baseline(), compiled(0.9)), "compiling")[0]
    assert "no eager run" in one(said(baseline(global_batch=128), compiled(2.0)), "compiling")[0]


def test_a_tuner_that_stayed_with_eager():
    run = with_measured(compiled(1.0), compiler={"plan": "eager", "compile_s": 55.0, "rows": []})
    assert "stayed with eager" in one(said(baseline(), run), "compiling")[0]


# -- batch, memory, hosts, accuracy -------------------------------------------------------


def test_a_larger_batch_and_accumulation():
    large = with_measured(planted(speed=1.8, global_batch=128, accuracy=0.8), steps=11)
    text, runs = one(said(baseline(), large), "global batch of 128 instead of 64")
    assert "11 updates of the weights instead of 23 in as many epochs; accuracy 80.0% beside 90.0%" in text
    parts = planted(speed=1.7, global_batch=128, accumulation=4)
    assert "gradients of 4 micro-batches of 16, and exchanges them once" in " ".join(said(baseline(), parts))


def test_memory_beside_the_baseline():
    run = with_measured(planted(), peak_memory_bytes=[300_000_000, 310_000_000])
    text, runs = one(said(baseline(), run), "memory")
    assert "DDP ×2 needed less memory: 310 MB in each of its 2 processes at most, baseline 600 MB" in text
    assert not any("memory" in text for text in said(baseline(), planted()))


def test_hosts_are_named():
    run = with_measured(planted(), hosts=[{"name": "a", "ranks": [0]}, {"name": "b", "ranks": [1]}])
    assert "DDP ×2 ran on 2 hosts: a (1 rank), b (1 rank)." in said(baseline(), run)


def test_time_to_accuracy_can_reverse_the_order():
    first = with_measured(baseline(), curve=curve((1, 0.5), (2, 0.92)))
    fast = with_measured(planted(speed=1.8), curve=curve((1, 0.5), (2, 0.8), (3, 0.9)))
    text, runs = one(said(first, fast), "so it came later")
    assert "DDP ×2 reached 90.0% test accuracy after 3.00 s of training, baseline after 2.00 s (0.67×" in text
    assert "slower to the goal" in text and runs == ("id-DDP ×2", "id-baseline")
    assert "did not reach 95.0% test accuracy; its best was 90.0%" in " ".join(said(first, fast, target=0.95))


def test_seeds_are_told_as_their_mean():
    seeded = [{**planted(devices=4, accuracy=a, seed=s), "run_id": f"s{s}"} for s, a in enumerate((0.8, 0.9, 0.7))]
    text, runs = one(said(baseline(), *seeded), "mean of 3 seeds")
    assert "70.0% to 90.0%" in text and runs == ("s0", "s1", "s2")


# -- several machines ---------------------------------------------------------------------


def elsewhere(*records, name="Other CPU"):
    for record in records:
        record["environment"]["machine"] = {**MACHINE.as_dict(), "name": name}
        record["run_id"] += name
    return records


def test_machines_are_compared_each_with_its_own_baseline():
    report = made(baseline(), planted(speed=1.8), *elsewhere(baseline(), planted(speed=0.6)))
    text, runs = next(sentence for sentence in report.between if "DDP" in sentence.text)
    assert "faster, 1.80× baseline's speed on Some CPU, 2 cores" in text
    assert "slower, 0.60× baseline's speed on Other CPU, 2 cores" in text and "does not on another" in text
    assert set(runs) == {"id-DDP ×2", "id-baseline", "id-DDP ×2Other CPU", "id-baselineOther CPU"}
    noise = made(baseline(), planted(speed=1.8), *elsewhere(baseline(), planted(speed=1.04)))
    assert not any("does not on another" in sentence.text for sentence in noise.between)


def test_another_training_is_not_set_beside():
    assert made(baseline(), *elsewhere(baseline(epochs=7), planted(epochs=7))).between == []
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
