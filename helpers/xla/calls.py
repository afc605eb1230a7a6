"""Every call of the two source articles: what it was, what it is today, and an example that runs.

TorchAcc: "Import a custom model to TorchAcc" (help.aliyun.com/zh/pai/user-guide/import-a-custom-model-to-torchacc).
AGSpeed: "Use AGSpeed to accelerate PyTorch training" (help.aliyun.com/document_detail/468651.html).
"""

from dataclasses import asdict, dataclass

from .calls_agspeed import ROWS as AGSPEED
from .calls_torchacc import ROWS as TORCHACC


@dataclass(frozen=True)
class Call:
    """One row.

    Attributes:
        source: "TorchAcc" or "AGSpeed".
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


CALLS = [Call("TorchAcc", *row) for row in TORCHACC] + [Call("AGSpeed", *row) for row in AGSPEED]


def frame(source=None):
    """The table as a pandas DataFrame, of one source or of both; without the examples."""
    import pandas

    rows = [asdict(call) for call in CALLS if source in (None, call.source)]
    return pandas.DataFrame(rows).drop(columns="example")


def markdown(source=None) -> str:
    """The same as a Markdown table."""
    lines = ["| source | then | today |", "| --- | --- | --- |"]
    for call in CALLS:
        if source in (None, call.source):
            lines.append(f"| {call.source} | {_code(call.then)} | {call.today.replace('|', chr(92) + '|')} |")
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


def _code(text):
    return f"`{text}`".replace("|", "\\|")
