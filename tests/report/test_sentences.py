"""What the report says of records, which records it names for it, and what it does not say."""

import pytest
from records import baseline, failed, ladder, planted

from helpers.records import read
from helpers.report.causes import break_even
from helpers.report.report import COLUMNS, Report
from helpers.report.sentences import FASTER, NOT_SHOWN, SLOWER, verdict


def report_of(*records):
    return Report(read.Found([{**read.checked(record), "file": "a.json"} for record in records]))


def said(*records):
    """{text: ids} of all sentences about the only ladder of these records."""
    found = report_of(*records)
    ((only,),) = [machine.ladders for machine in found.machines]
    return {sentence.text: sentence.runs for sentence in found.sentences(only)}


def with_measured(record, **measured):
    record["measured"].update(measured)
    return record


def half(speed, advice=None):
    return {**planted("baseline", 1, speed, precision="bf16"), "advice": advice}


def compiled(speed, plan="inductor"):
    run = planted("baseline", 1, speed, compiler="inductor", label="compiled")
    return with_measured(run, compiler={"plan": plan, "compile_s": 20.0})


TWO, HALF = ("id-DDP ×2", "id-baseline"), (half(1.0)["run_id"], "id-baseline")
SLOW = {"dtype": "bfloat16", "conv_ratio": 0.09, "faster": []}
SAID = {  # records beside a baseline, parts of the only sentence that has them all, the ids behind it
    "faster": ([planted(speed=1.82)], ["faster", "1.82×", "91.0%", "90.0%"], TWO),
    "slower": ([planted(speed=0.5, accuracy=0.85)], ["slower", "0.50×", "85.0%", "90.0%"], TWO),
    "not shown": ([planted(speed=1.04)], ["no difference is shown", "1.04×"], TWO),
    "rounds": ([planted(speed=1.82), {**planted(speed=1.82), "run_id": "again"}], ["1.82×"], (TWO[0], "again", TWO[1])),
    "a failure": ([failed("RankError: rank 1 failed.")], ["failed", "rank 1 failed"], TWO[:1]),
    "communication by DDP's clocks": (
        [with_measured(planted(), communication={"steps": 10, "exposed_s": 0.006, "hidden_s": 0.012})],
        ["6.0% of a step of DDP ×2", "11.9%", "10 steps"],
        TWO[:1],
    ),
    "a half format that pays": ([half(1.6)], [" paid ", "1.60×"], HALF),
    "a slow half format": ([half(0.5, SLOW)], ["did not pay", "convolution in bfloat16", "0.09 times"], HALF),
    "a half format within the noise": ([half(1.02)], ["showed no difference"], HALF),
    "compiling that pays": ([compiled(1.25)], ["20.0 s compiling", "after 996"], ("id-compiled", "id-baseline")),
    "compiling that never pays": ([compiled(0.9)], ["compiling", "never pays"], ("id-compiled", "id-baseline")),
}


@pytest.mark.parametrize("about", SAID)
def test_a_sentence_says_it_and_names_its_records(about):
    records, parts, ids = SAID[about]
    (found,) = [runs for text, runs in said(baseline(), *records).items() if all(part in text for part in parts)]
    assert found == ids


def test_a_run_that_computes_otherwise_has_no_efficiency():
    (text,) = [text for text in said(baseline(), planted(speed=3.1, precision="bf16")) if "3.10×" in text]
    assert "efficiency" not in text


def test_without_a_baseline_no_speed_up_is_told():
    (text,) = said({**planted(speed=1.8), "group": ""})
    assert "55.8 ms" in text and "×" not in text.replace("DDP ×2", "")


@pytest.mark.parametrize(
    "low, high, wanted",
    [(1.01, 1.2, FASTER), (0.8, 0.99, SLOWER), (0.99, 1.2, NOT_SHOWN), (None, None, NOT_SHOWN)],
)
def test_the_verdict_is_that_of_the_interval(low, high, wanted):
    row = {"speed_up": 1.1 if wanted != SLOWER else 0.9, "speed_up_low": low, "speed_up_high": high}
    assert verdict(row) == wanted


def test_break_even_takes_the_tuners_own_times_or_an_eager_run():
    run = compiled(1.25)
    assert break_even(baseline(), [baseline()]) is None
    assert break_even(run, [run])["gain"] is None
    assert break_even(run, [baseline(), run])["steps"] == 996
    tried = [{"plan": "eager", "step_s": 0.2, "speed_up": 1.0}, {"plan": "inductor", "step_s": 0.1, "speed_up": 2.0}]
    run["measured"]["compiler"]["rows"] = tried
    assert break_even(run, [baseline(), run])["steps"] == 200


def test_text_fits_a_terminal():
    records = [*ladder().records, {**failed(devices=4), "run_id": "x" * 300}]
    lines = report_of(*records).text().splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert any("1.82×" in line and "DDP ×2" in line for line in lines)
