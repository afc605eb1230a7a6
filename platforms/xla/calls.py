"""Every call of the two source articles: what it was, what it is today, and an example that runs; from calls.md.

TorchAcc: "Accelerate distributed ResNet-50 training by TorchAcc".
TorchAcc, custom model: what that article leaves out, such as MpDeviceLoader and xlarun, from "Import a custom model to
TorchAcc" (help.aliyun.com/zh/pai/user-guide/import-a-custom-model-to-torchacc).
AGSpeed: "Use AGSpeed to accelerate PyTorch training" (help.aliyun.com/document_detail/468651.html).
added here: in none of them, and useful with any compiler.
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One row.

    Attributes:
        source: "TorchAcc", "TorchAcc, custom model", "AGSpeed" or "added here", as above.
        then: the call as the article has it.
        today: what to write now, or why nothing is needed any more.
        where: the environment of the example, "main" (the notebooks') or "xla".
        example: code that shows today's form, or that it is not needed; it raises if that is wrong.
    """

    source: str
    then: str
    today: str
    where: str
    example: str


def _rows():
    text = Path(__file__).with_name("calls.md").read_text(encoding="utf-8")
    for part in re.split("(?m)^# ", text)[2:]:
        source, *rows = re.split("(?m)^## ", part)
        for row in rows:
            heading, today, example = row.split("\n\n", 2)
            then, where = re.fullmatch(r"(.*) \[(main|xla)\]", heading).groups()
            yield Call(source.strip(), then, today.replace("\n", " "), where, textwrap.dedent(example).strip())


CALLS = list(_rows())


def markdown() -> str:
    """The table in Markdown, without the examples."""
    lines = ["| source | then | today |", "| --- | --- | --- |"]
    for call in CALLS:
        then, today = (text.replace("|", "\\|") for text in (call.then, call.today))
        lines.append(f"| {call.source} | `{then}` | {today} |")
    return "\n".join(lines)


def run(where) -> dict:
    """Execute all examples of one environment, in it; {index in CALLS: "" or what went wrong}."""
    outcome = {}
    for i, call in enumerate(CALLS):
        if call.where == where:
            try:
                exec(compile(call.example, f"<{call.then}>", "exec"), {"__name__": "example"})
                outcome[i] = ""
            except Exception as error:
                outcome[i] = f"{type(error).__name__}: {error}"
    return outcome
