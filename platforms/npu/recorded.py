"""What a demonstration gave on a machine that could run it, for machines that cannot compile the device."""

import json
import os
from functools import lru_cache
from pathlib import Path

from helpers.language import _
from helpers.paths import project_root, replace_file

from .build import NpuMissing, library
from .loading import real_torch_npu


def run_or_show(lesson, name, function, *args, **kwargs):
    """`function(*args, **kwargs)` where an NPU can be had, real or emulated; else what it gave when recorded.

    Args:
        lesson: names the file of recordings, recorded/npu/LESSON.json.
        name: names the demonstration in it.
        function: returns what JSON can hold (tuples come back as lists). With HELPERS_NPU_RECORD=1
            its answer is kept in that file: python -m notebooks.scripts.npu_record makes the recordings of the kit.

    Raises:
        NpuMissing: the device cannot be built here and there is no recording of that name.
    """
    missing = why_missing()
    if missing is None:
        answer = json.loads(json.dumps(function(*args, **kwargs)))
        if os.environ.get("HELPERS_NPU_RECORD"):
            keep(lesson, {name: answer})
        return answer
    kept = read(lesson)
    if name not in kept:
        raise missing
    _say_so(lesson)
    return kept[name]


@lru_cache  # once a lesson
def _say_so(lesson):
    where = ", ".join(read(lesson).get("where", {}).values()) or _("another machine")
    print(
        _("there is no C++ compiler here: what cards do is shown from here on as it was recorded ({where})").format(
            where=where
        )
    )


@lru_cache
def why_missing():
    """None where an NPU can be had, else the NpuMissing that says why not."""
    try:
        if not real_torch_npu():
            library()
    except NpuMissing as missing:
        return missing
    return None


def _file(lesson) -> Path:
    return project_root() / "recorded" / "npu" / f"{lesson}.json"


def keep(lesson, answers):
    """Add {name: answer} to the recordings of a lesson."""
    _file(lesson).parent.mkdir(parents=True, exist_ok=True)
    replace_file(_file(lesson), json.dumps(read(lesson) | answers, indent=1) + "\n")


def read(lesson) -> dict:
    """{name: answer}, the recordings of a lesson."""
    try:
        return json.loads(_file(lesson).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
