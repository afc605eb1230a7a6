"""Run a script on the emulated cards (or the real ones) in processes of its own, and tell what it did there."""

import errno
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from helpers.launcher.language import marked

from .cards import MOST_CARDS, check_settings
from .loading import real_torch_npu, shims

GRACE = 2.0  # s that a process has to end in after it was asked to
QUIET = 0.5  # s without output after which to look whether the script has ended


@dataclass(frozen=True)
class Finished:
    """How a script ended.

    Attributes:
        returncode: the script's exit status; negative: the signal that ended it.
        output: its stdout and stderr, in the order they came.
        seconds: how long it ran (of an emulated device: no measure of anything but patience).
        processes: what each process that used a card did there (emulated device only), by rank:
            pid, rank, set_device, devices {card: counters}, collectives {name: calls}, pinned, amp.
        timed_out: whether it was stopped because it took too long.
    """

    returncode: int
    output: str
    seconds: float
    processes: list = field(default_factory=list)
    timed_out: bool = False

    @property
    def error(self) -> str:
        """The last line that names an exception, "" if there is none."""
        lines = re.findall(
            r"^(?:\S*: )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)$", self.output, re.MULTILINE
        )
        return lines[-1].strip() if lines else ""

    def check(self):
        """This object, if the script ended well; else RuntimeError with the end of what it said."""
        if self.timed_out or self.returncode:
            how = marked(f"the script ended with status {self.returncode}:")
            if self.timed_out:
                how = marked("the script took too long and was stopped:")
            raise RuntimeError(f"{how}\n" + "\n".join(self.output.splitlines()[-25:]))
        return self


def environment(devices=None, memory=None, base=None) -> dict:
    """Environment variables for a Python process that is to find `torch_npu` and `apex`.

    Args:
        devices: cards of the emulated host, 1 to 8 (default: HELPERS_NPU_DEVICES, or 8).
        memory: MiB of each card (default: HELPERS_NPU_MEMORY_MB, or 32 GiB).
        base: the environment to start from (default: this process's).

    Raises:
        ValueError: so many cards, or so much memory, cannot be had.
    """
    made = dict(os.environ if base is None else base)
    for name, value in (("HELPERS_NPU_DEVICES", devices), ("HELPERS_NPU_MEMORY_MB", memory)):
        if value is not None:
            made[name] = str(value)
    check_settings(made)
    path = [*shims(), *filter(None, [made.get("PYTHONPATH")])]
    made["PYTHONPATH"] = os.pathsep.join(path)
    return made


def run(arguments, *, devices=2, memory=None, timeout=None, env=None, cwd=None, echo=print) -> Finished:
    """`python ARGUMENTS…` on `devices` cards; its lines go to `echo` as they come.

    A script that fails is no error here: look at `returncode`, `error` and `output`. The stop
    button, or `timeout` seconds, ends it and every process it started.

    Args:
        arguments: the script and its arguments, or `["-m", "torch.distributed.run", …]`.
        devices, memory: the emulated host, see `environment`; without meaning on real cards.
        timeout: seconds, None to wait as long as it takes.
        env: more environment variables.
        cwd: folder to run in.
        echo: called with each line of output; None for silence.

    Raises:
        NpuMissing: the emulated device cannot be built.
        ValueError, TypeError: bad arguments; nothing was started.
    """
    arguments = [os.fspath(a) if isinstance(a, (str, Path)) else str(a) for a in _checked(arguments, devices, cwd)]
    made = environment(devices, memory, {**os.environ, **(env or {})})
    if not real_torch_npu():
        from .build import library

        library(echo or (lambda line: None))  # here, rather than in each of the script's processes
    with tempfile.TemporaryDirectory(prefix="helpers-npu-") as folder:
        made["HELPERS_NPU_REPORT"] = folder
        made.pop("PYTHONUNBUFFERED", None)  # it would cut lines into pieces, see _start
        began = time.monotonic()
        process, terminal = _start([sys.executable, *arguments], made, cwd)
        try:
            output, timed_out = _follow(process, terminal, timeout, echo)
        finally:
            _end(process)
            os.close(terminal)
        seconds = time.monotonic() - began
        counted = [json.loads(file.read_text()) for file in Path(folder).glob("[!.]*.json")]
    counted.sort(key=lambda p: (p["rank"] is None, p["rank"], p["pid"]))
    return Finished(process.returncode, output, seconds, counted, timed_out)


def _checked(arguments, devices, cwd):
    if isinstance(arguments, (str, Path)) or not arguments:
        raise TypeError(f"give the script and its arguments as a list, ['main.py', '--epochs', '1'], not {arguments!r}")
    if isinstance(devices, bool) or not isinstance(devices, int):
        raise TypeError(f"devices is {devices!r}; give a whole number of cards, 1 to {MOST_CARDS}")
    script = str(arguments[0])
    if not script.startswith("-") and not Path(cwd or ".", script).is_file():
        raise FileNotFoundError(f"there is no script {script} in {cwd or Path.cwd()}")
    return arguments


def _start(command, environment, cwd):
    """The process, and the reading end of its terminal.

    Python writes whole lines to a terminal as they are complete; into a pipe it would write them
    much later, or, unbuffered, in pieces that several processes mix up.
    """
    import pty
    import termios

    terminal, theirs = pty.openpty()
    try:
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # "\n" stays "\n"
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        streams = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": theirs}
        process = subprocess.Popen(command, env=environment, cwd=cwd, start_new_session=True, **streams)
    except BaseException:
        os.close(terminal)
        raise
    finally:
        os.close(theirs)
    return process, terminal


def _read(terminal):
    """What there is to read; b"" when the last process has closed its end."""
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def _follow(process, terminal, timeout, echo):
    """The process's output, handed on line by line; and whether time ran out."""
    lines, rest, deadline = [], b"", None if timeout is None else time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(terminal, selectors.EVENT_READ)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return "\n".join(lines), True
            if not selector.select(QUIET if left is None else min(left, QUIET)):
                if process.poll() is not None:  # the script has ended; whoever keeps its terminal is ended as well
                    return "\n".join(lines), False
                continue
            data = _read(terminal)
            *complete, rest = (rest + data).split(b"\n")
            for line in complete if data else filter(None, [*complete, rest]):
                lines.append(line.decode(errors="replace").rpartition("\r")[2])
                if echo:
                    echo(lines[-1])
            if not data:
                process.wait()
                return "\n".join(lines), False


def _end(process):
    """Leave nothing of the script's session running."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
