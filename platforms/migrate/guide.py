"""Huawei's guide to manual migration as data: each of its sixteen steps as old and new lines of the ImageNet example.

    script([1, 2, 3])           # the example after three steps
    script(leave_out=[6])       # all steps but one

The steps are in guide.diff: a title after ##, the place in @@, then lines with -, + or a space, "~" between two edits.
Order, places and what is written are the guide's ("single host, several cards"); the lines are those of our example,
notebooks/scripts/imagenet.py. `OURS` is what the guide lacks: the script needs the first part to run, and a trainer
the others.
"""

from dataclasses import dataclass
from pathlib import Path

from helpers.paths import project_root

EXAMPLE = project_root() / "notebooks" / "scripts" / "imagenet.py"


@dataclass(frozen=True)
class GuideStep:
    """A step of the guide: where it edits main.py, and its `edits`, texts of a diff each; the last step has none."""

    number: int
    title: str
    place: str
    edits: tuple

    def diff(self):
        """The edits as a diff, with the place in its head."""
        return "".join([f"@@ {self.place} @@\n", *self.edits])

    def apply(self, text):
        """`text` with the step done; ValueError where the old lines are not there."""
        for edit in self.edits:
            lines = edit.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in (" ", sign)) for sign in "-+")
            if text.count(old) != 1:
                count = text.count(old)
                raise ValueError(f"step {self.number} needs these lines once, and finds them {count} times:\n{old}")
            text = text.replace(old, new)
        return text


def _steps():
    _, *parts = ("\n" + Path(__file__).with_name("guide.diff").read_text(encoding="utf-8")).split("\n## ")
    for number, part in enumerate(parts, start=1):
        title, _, edits = f"{part}\n".partition("\n")
        place, _, edits = edits.removeprefix("@@ ").partition(" @@\n") if edits.startswith("@@") else ("", "", edits)
        yield GuideStep(number, title, place, tuple(edits.split("~\n")) if edits else ())


*GUIDE, _METERS, _BACKEND, _DYNAMIC = _steps()
OURS = {step.title.removeprefix("ours: "): step for step in (_METERS, _BACKEND, _DYNAMIC)}


def script(steps=None, leave_out=(), ours=(), text=None):
    """`text` (default: the example) after these steps of the guide (default: all), without those left out.

    `ours` names parts of OURS to add.
    """
    text = EXAMPLE.read_text(encoding="utf-8") if text is None else text
    wanted = [step for step in GUIDE if (steps is None or step.number in steps) and step.number not in leave_out]
    for step in [*wanted, *(OURS[name] for name in ours)]:
        text = step.apply(text)
    return text
