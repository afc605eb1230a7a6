#!/usr/bin/env python3
"""Write the measured tables of README.md and docs/*.md from recorded runs; no number there is typed by hand.

.venv/bin/python tools/render_pages.py                  render what is in recorded/
.venv/bin/python tools/render_pages.py --from results   first take the newest complete ladder of these results
"""

import argparse
import csv
import os
import re
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

from helpers import paths, plots
from helpers.comparison import studies
from helpers.comparison.ladder import Comparison
from helpers.language import N_, _
from helpers.plots import seeds, style
from helpers.plots.panels import panels
from helpers.records import read, store
from helpers.report.ladders import machine_name

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks are not installed with the package
from benchmarks import figure, records, table  # noqa: E402

LADDER = ROOT / "recorded" / "ladder"
BENCH = ROOT / "recorded" / "bench"
BLOCK = r"(<!-- measured: written by tools/render_pages.py from {}; do not edit -->\n).*?(<!-- end -->)"
SHOWN = (N_("one process"), "DDP ×2", "ZeRO-1 ×2", N_("FSDP ×2, full (ZeRO-3)"), N_("FSDP ×2, full, recompute full"))
STUDY, TIMED, SHARDS, TARGET = "batch_and_accuracy", "time_to_accuracy", "sharding", 0.9
COLUMNS = ["run", "step time (ms)", "images/s", "speed-up", "efficiency", "accuracy", "whole run (s)"]


def take(root):
    """Copy the records of the newest completed ladder below `root` to recorded/ladder."""
    ladders = {}
    for record in read.read(root).records:
        if record["group"].endswith("-ladder"):
            ladders.setdefault(record["group"], []).append(record)
    done = [group for group, records in ladders.items() if all(r["status"] == "completed" for r in records)]
    if not done:
        sys.exit(f"there is no completed ladder in {root}: run `make run` first")
    shutil.rmtree(LADDER, ignore_errors=True)
    for record in ladders[max(done)]:
        store.write(record, LADDER)


def ladder_block(comparison):
    """The ladder: machine, table, plot with alt text."""
    environment, config = comparison.baseline["environment"], comparison.baseline["config"]
    table, (_, alt) = plots.table(comparison)[COLUMNS], plots.speed_up(comparison)
    about = (
        f"Recorded {comparison.baseline['started'][:10]} on {machine_name(comparison.baseline)}"
        f"{_computes(environment)}, torch {environment['versions']['torch']}: {config['model']} on "
        f"{config['data']}, global batch {config['global_batch']}, {config['epochs']} epochs, "
        f"{config['threads']} CPU thread(s) a device."
    )
    return "\n".join([about, "", *_lines(COLUMNS, table.values), "", f"![{alt}](../recorded/ladder/speedup.svg)", ""])


def _computes(environment):
    """What a CPU computes by instructions of its own, in brackets; "" for another device or an old record."""
    machine = environment["machine"]
    if machine["kind"] != "cpu" or "instructions" not in machine:
        return ""
    half = [name for name in machine["instructions"] if "bf16" in name]
    return f" ({machine['capability']}, bf16 {'by ' + ', '.join(half) if half else 'only emulated, so left out'})"


def study_block(study, timed):
    """Accuracy of the study's rows, and the time to an accuracy of those that were timed."""
    rows = [
        [row["label"], f"{row['steps']:.0f}", f"{style.percent(row['accuracy'])} ({spread(row)})", row["seeds"]]
        for row in seeds.rows(study.groups(), TARGET)
    ]
    columns = ["run", "updates", "accuracy, mean (lowest to highest seed)", "seeds"]
    _, alt = plots.time_to_accuracy(timed.groups(), TARGET)
    return "\n".join(
        [
            study.made[0].upper() + study.made[1:] + ".",
            "",
            *_lines(columns, rows),
            "",
            f"Time to an accuracy of {TARGET:.0%}, {timed.made}:",
            "",
            f"![{alt}](../recorded/studies/{TIMED}.svg)",
            "",
        ]
    )


def held_figure(study):
    """README's figure: what a rank of some strategies holds, and how long its step takes."""
    rows = []
    for record in study.records:
        if record["label"] in SHOWN:
            held = [max(rank[kind] for rank in record["measured"]["memory_bytes"]) / 1e6 for kind in read.HELD]
            steps = record["measured"]["step_time_s"]
            time = tuple(1000 * steps[key] for key in ("median", "q1", "q3"))
            both = {"states": sum(held[:3]), "activations": held[3], "step": time}
            rows.append({"name": _(record["label"]), "kind": "ours", **both})
    columns = (
        ("states", _("weights, gradients, optimizer (MB)"), style.number, None),
        ("activations", _("activations (MB)"), style.number, None),
        ("step", _("step (ms)"), style.number, None),
    )
    one = study.records[0]
    title = _("What each rank holds: a GPT of {n} million weights, AdamW, fp32")
    title = title.format(n=f"{one['measured']['parameters'] / 1e6:.1f}")
    note = _("Whisker: the middle half of the steps. Processes on a CPU.")
    return panels(title, machine_name(one), rows, columns, [note])


def sharding_block(study):
    """What a rank of each strategy holds, counted by hand and measured, its time, and how it follows one process."""
    one, rows = study.records[0], []
    for record in study.records:
        config, measured = record["config"], record["measured"]
        held = [max(rank[kind] for rank in measured["memory_bytes"]) / 1e6 for kind in read.HELD]
        counted = sum(counted_states(config, measured["parameters"])) / 1e6
        low, middle, high = (1000 * measured["step_time_s"][key] for key in ("q1", "median", "q3"))
        apart = max(abs(a - b) for a, b in zip(*(r["measured"]["samples"]["loss"] for r in (record, one)), strict=True))
        rows.append(
            [
                record["label"],
                f"{counted:.1f}",
                f"{sum(held[:3]):.1f} ({sum(held[:3]) / counted - 1:+.1%})",
                f"{held[3]:.1f}",
                f"{middle:.0f} ({low:.0f}–{high:.0f})",
                f"{apart:.4f}" if record is not one else "–",
            ]
        )
    columns = [
        "strategy",
        "states, counted (MB)",
        "measured (MB)",
        "activations (MB)",
        "step (ms, middle half)",
        "losses apart from one process, at most",
    ]
    losses = one["measured"]["samples"]["loss"]
    about = (
        f"{study.made[0].upper()}{study.made[1:]}: {one['measured']['parameters']:,} weights in fp32, AdamW, a global "
        f"batch of {one['config']['global_batch']} sequences, {len(losses)} steps (losses from {losses[0]:.2f} to "
        f"{losses[-1]:.2f}, recorded to 5 digits). States are weights, gradients and moments of the rank that holds "
        "most; counted are 4 + 4 + 8 bytes a weight, divided by the ranks that share them. On gloo; with NCCL expect "
        "other ratios of time."
    )
    return "\n".join([about, "", *_lines(columns, rows), ""])


def counted_states(config, weights):
    """(bytes of weights, of gradients, of Adam's moments) on a rank, by the strategy's arithmetic."""
    ranks = config["nproc_per_node"] // (2 if config["shard"] == "hybrid" else 1)
    fsdp, sharded = config["strategy"] == "fsdp", config["strategy"] in ("fsdp", "zero1")
    return (
        4 * weights / (ranks if fsdp else 1),
        4 * weights / (ranks if fsdp else 1),
        8 * weights / (ranks if sharded else 1),
    )


def bench_block(kept):
    """Targets beside what was measured, and their figure."""
    drawn = figure.limits(kept)
    picture = [f"![{style.clean(drawn[1])}](../../recorded/bench/limits.svg)"] if drawn else []
    return "\n".join([*table.lines(kept), *picture, ""])


def glossary_block():
    """The terms of the glossary whose meaning is given, in English and Chinese."""
    with open(ROOT / "locale/zh_CN/glossary.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["meaning"]]
    rows.sort(key=lambda row: row["english"].lower())
    lines = [[row["english"], row["chinese"].rstrip("|").replace("|", ", "), row["meaning"]] for row in rows]
    return "\n".join([*_lines(["term", "中文", "what it is"], lines), ""])


def spread(row):
    """The least and the largest accuracy."""
    return f"{style.percent(row['accuracy_min'])} to {style.percent(row['accuracy_max'])}"


def _lines(columns, rows):
    """A table in Markdown."""
    rows = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(str(cell).replace("\n", " ") for cell in row) + " |" for row in rows]


def render():
    """The pages as they have to be, as {path: text}, and their figures, also in Chinese, as {path: SVG text}."""
    comparison = Comparison(read.read(LADDER).records)
    study, timed = (studies.read(name, studies.kept_path(name)) for name in (STUDY, TIMED))
    shards, kept = studies.read(SHARDS, studies.kept_path(SHARDS)), records.read(BENCH)
    held = held_figure(shards)
    blocks = {
        "README.md": ("recorded/studies", f"![{style.clean(held[1])}](recorded/studies/{SHARDS}.svg)\n"),
        "docs/measuring.md": ("recorded/ladder", ladder_block(comparison)),
        "docs/glossary.md": ("locale/zh_CN", glossary_block()),
        "docs/accuracy.md": ("recorded/studies", study_block(study, timed)),
        "docs/strategies.md": ("recorded/studies", sharding_block(shards)),
        "docs/project/benchmarks.md": ("recorded/bench", bench_block(kept)),
    }
    pages = {}
    for name, (source, block) in blocks.items():
        place = re.compile(BLOCK.format(source), re.DOTALL)
        text = (ROOT / name).read_text(encoding="utf-8")
        pages[ROOT / name] = place.sub(lambda found, block=block: found[1] + block + found[2], text)
    figures = {}
    for language, ending in (("en", ".svg"), ("zh", ".zh.svg"))[: len(style.fonts())]:  # one, without a Chinese font
        with shown_in(language):
            drawn = {
                LADDER / "speedup": plots.speed_up(comparison),
                studies.kept_path(SHARDS): held_figure(shards),
                studies.kept_path(TIMED): plots.time_to_accuracy(timed.groups(), TARGET),
            }
            figures |= {path.with_suffix(ending): style.svg(*one) for path, one in drawn.items()}
    if drawn := figure.limits(kept):
        figures[BENCH / "limits.svg"] = style.svg(*drawn)
    return pages, figures


@contextmanager
def shown_in(language):
    """While this lasts, what is made for readers is in this language."""
    before = os.environ.get("HELPERS_LANG", "")
    os.environ["HELPERS_LANG"] = language
    try:
        yield
    finally:
        os.environ["HELPERS_LANG"] = before


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="root", type=Path, help="results folder to take the newest ladder from")
    options = parser.parse_args()
    if options.root:
        take(options.root)
    pages, figures = render()
    for path, text in {**pages, **figures}.items():
        paths.replace_file(path, text)
