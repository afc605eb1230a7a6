"""Scripts that hypothesis puts together: after a migration they parse, do the same on torch.npu, and hide nothing."""

import ast
import builtins
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platforms.migrate import migrate
from platforms.migrate.advice import WORD
from platforms.migrate.counterparts import counterpart
from platforms.migrate.passes.strings import translated

pytestmark = pytest.mark.long

# Scripts that run against torch-like objects which write down what is called: the same calls have to
# come out, under the names of the NPU. The list of names is shared with the tool, the resolution is not.

IMPORTS = [
    "import torch",
    "import torch as t",
    "import torch, os",
    "from torch import cuda",
    "from torch import nn, cuda as c",
    "import torch.cuda",
    "import torch.cuda as tc",
    "import torch.cuda.amp as amp",
    "from torch.cuda import amp, nvtx",
    "from torch.cuda.amp import autocast as ac, GradScaler",
    "from torch.cuda import (\n    synchronize,  # wait\n    Stream as S\n)",
    "import torch.distributed as dist",
    "from torch.cuda.memory import empty_cache",
    "import torch.nn as nn",
    "from mine import cuda",
    "from mine import helper, autocast",
]
CALLS = [
    "torch.cuda.is_available()",
    "t.cuda.synchronize()",
    "cuda.device_count()",
    "c.set_device(1)",
    "tc.empty_cache()",
    "amp.autocast(enabled=True)",
    "ac()",
    "GradScaler(8.0)",
    "torch.cuda.amp.GradScaler()",
    "nvtx.mark('a')",
    "torch.cuda.nvtx.range_push('cuda')",
    "torch.cuda.memory.empty_cache()",
    "S().wait()",
    "synchronize()",
    "Stream()",
    "dist.init_process_group('nccl')",
    "dist.is_nccl_available()",
    "empty_cache()",
    "cuda.nvtx.range_pop()",
    "cuda()",
    "x.cuda()",
    "x.cuda(0, non_blocking=True)",
    "x.to('cuda')",
    "x.to(device='cuda:1')",
    "x.to(f'cuda:{1}')",
    "x.to('cuda:{}'.format(1))",
    "x.to('cuda:%d' % 1)",
    "nn.Linear(1, 2).cuda()",
    "torch.device('cuda', 0)",
    "f(torch.cuda.current_device)",
    "f('prose about cuda')",
    "f(cuda='cuda:0')",
    "own.cuda()",
    "Own().cuda()",
    "f(own=Own())",
    "x.load(map_location={'cuda:0': 'cuda:1'})",
    "f({'cuda': 1})",
    "f({'cuda': 1, 'cpu': 2})",
    "hasattr(torch, 'cuda')",
    "getattr(own, 'cuda')()",
    "autocast()",
    "helper.cuda(1)",
    "f(lambda cuda: cuda.init())",
    "f([cuda.init() for cuda in x])",
    "x.type(torch.cuda.FloatTensor)",
    "x.type('torch.cuda.HalfTensor')",
]
BLOCKS = [
    "if x:",
    "for cuda in x:",
    "while x.next():",
    "def g(cuda=x, torch=x):",
    "def g():",
    "with amp.autocast() as cuda:",
    "with x:",
    "try:",
    "class C:",
    "async def g():",
    "for i, x in x:",
]
COMMENTS = ["", "", "", "  # why", "  # for CUDA", "\t#é"]


@st.composite
def spaced(draw, code):
    """The same tokens with other spaces, where those do not matter."""
    marks = draw(st.sampled_from(["", "", "() ", ". "]))
    if "'" in code or not marks:
        return code
    if marks == "() ":
        return code.replace("(", "( ").replace(")", " )")
    return re.sub(r"(?<=[a-z])\.(?=[a-z])", " . ", code)


@st.composite
def block(draw, depth=0):
    """Lines of statements, deeper ones indented by a mark that is replaced at the end."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        comment = draw(st.sampled_from(COMMENTS))
        kind = draw(st.integers(0, 9))
        if kind < 2 and depth < 3:
            head = draw(st.sampled_from(BLOCKS))
            lines.append(head + comment)
            lines += [">" + line for line in draw(block(depth + 1))]
            if head == "try:":
                lines += ["except torch.cuda.OutOfMemoryError:", ">f('cuda:0')"]
            elif head.startswith("def g"):
                lines.append("g()")
        elif kind < 3:
            lines.append(draw(st.sampled_from(IMPORTS)) + comment)
        elif kind < 4:
            lines += [draw(st.sampled_from(["", "", "\x0c", "   ", "# a line about NCCL", "own = Own()", "cuda = x"]))]
        else:
            calls = [draw(spaced(draw(st.sampled_from(CALLS)))) for _ in range(draw(st.integers(1, 3)))]
            form = draw(st.sampled_from(["; ", "; ", "tuple", "choice"]))
            if form == "; ":
                lines.append("; ".join(calls) + comment)
            elif form == "tuple":
                lines += ["y = (", *(f"  {call},{comment}" for call in calls), ")"]
            else:
                lines.append(f"y = {calls[0]} if {calls[-1]} else 'cpu'{comment}")
    return lines or ["pass"]


@st.composite
def scripts(draw):
    start = ["class Own:", ">def cuda(self): return f('own')", "own = Own()"]
    imports = [draw(st.sampled_from(IMPORTS)) for _ in range(draw(st.integers(0, 5)))]
    lines = draw(st.sampled_from([[], ['"""Trains on CUDA."""'], ["# -*- coding: utf-8 -*-"]])) + imports + start
    text = "\n".join(lines + draw(block())) + draw(st.sampled_from(["\n", "", "\n\n"]))
    indent = draw(st.sampled_from(["    ", "\t", "  "]))
    text = re.sub(r"^>+", lambda marks: indent * len(marks[0]), text, flags=re.M)
    return text.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n"])))


class Recorder:
    """Anything: has every attribute, and writes down calls of it."""

    def __init__(self, name, log):
        self.__dict__.update(_name=name, _log=log)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(f"{self._name}.{name}", self._log)

    def __call__(self, *args, **kwargs):
        for each in args:
            if callable(each) and not isinstance(each, Recorder):
                each(Recorder("argument", self._log))
        self._log.append((self._name, args, kwargs))
        return Recorder(f"{self._name}()", self._log)

    def __iter__(self):
        return iter([Recorder(f"{self._name}[0]", self._log)])

    def __bool__(self):
        return not self._name.endswith("next()")

    def __enter__(self):
        return Recorder(f"{self._name}.entered", self._log)

    def __exit__(self, *_):
        return False

    def __repr__(self):
        return self._name


def trace(source):
    """What a script calls, until an exception ends it: [(name, arguments)]."""
    log = []

    def fake_import(name, globals=None, locals=None, fromlist=(), level=0):
        return Recorder(name if fromlist else name.partition(".")[0], log)

    space = {"x": Recorder("x", log), "f": Recorder("f", log)}
    space["__builtins__"] = {**vars(builtins), "__import__": fake_import}
    try:
        exec(compile(source, "script", "exec"), space)
    except Exception as error:
        log.append((type(error).__name__, (), {}))
    return [(plain(name), show(args), show(kwargs)) for name, args, kwargs in log]


def plain(name):
    return re.sub(r"^torch_npu\.npu", "torch.npu", name)


def show(value):
    if isinstance(value, dict):
        return {show(key): show(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [show(each) for each in value]
    return plain(repr(value)) if isinstance(value, Recorder) else re.sub(r" at 0x\w+|^<.*", "", str(value))


def moved(name):
    """The name that has to come out for the name of what was called."""
    first, *rest = name.split("()")
    parts = first.split(".")
    for length in range(len(parts), 0, -1):
        new = counterpart(".".join(parts[:length]))
        if new and (length == len(parts) or new not in ("torch.npu", "torch.npu.amp")):
            first = ".".join([new, *parts[length:]])
            break
    name = "()".join([first, *rest])
    is_method = name.endswith(".cuda") and not name.startswith(("torch.cuda", "mine"))
    return name.removesuffix("cuda") + "npu" if is_method else name


def expected(entry):
    name, args, kwargs = entry

    def move(value):
        if isinstance(value, dict):
            keep = "cuda" in value and "cpu" not in value
            return {key if keep else move(key): move(each) for key, each in value.items()}
        if isinstance(value, list):
            return [move(each) for each in value]
        return moved(value) if value.startswith("torch.") else translated(value)

    return moved(name), move(args), {key: move(each) for key, each in kwargs.items()}


def told(migration):
    return {line for note in migration.notes if note.kind == "left" for line in note.lines}


@given(scripts())
@settings(max_examples=50, deadline=None)
def test_a_generated_script_does_the_same_on_the_npu(source):
    try:
        compile(source, "script", "exec")
    except SyntaxError:
        return
    migration = migrate(source, name="main.py")
    ast.parse(migration.result)
    assert trace(migration.result) == [expected(entry) for entry in trace(source)], migration.result


@given(scripts(), st.sampled_from(["article", "modern"]))
@settings(max_examples=50, deadline=None)
def test_a_generated_script_is_migrated_once_and_completely(source, style):
    try:
        compile(source, "script", "exec")
    except SyntaxError:
        return
    migration = migrate(source, style=style, name="main.py")
    compile(migration.result, "script", "exec")
    again = migrate(migration.result, style=style, name="main.py")
    assert (again.result, again.changes) == (migration.result, ())
    lines = migration.result.split("\n")
    assert [line for n, line in enumerate(lines, 1) if WORD.search(line) and n not in told(migration)] == []
