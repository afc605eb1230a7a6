"""The migration tool: what it renames and what it leaves, how exactly it keeps a text, and what it tells."""

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

from platforms.migrate import STEPS, MigrationError, guide, migrate
from platforms.migrate.advice import WORD

HERE = Path(__file__).parent
OWN = [path for path in sorted((HERE.parent / "scripts").glob("*.py")) if not path.name.startswith("hvd_")]
FIXTURES = [*OWN, guide.EXAMPLE]
NPU = "import torch_npu  # registers the device\n"
TORCH = "import torch\n" + NPU


@functools.cache
def migrated(path, style):
    """A script migrated, once for all tests."""
    return migrate(path, style=style, name="main.py")


def unreported(migration):
    """Lines of the result that speak of CUDA, and of which no note says so."""
    told = {line for note in migration.notes if note.kind == "left" for line in note.lines}
    lines = migration.result.split("\n")
    return [f"{n}: {line}" for n, line in enumerate(lines, 1) if WORD.search(line) and n not in told]


def of_cuda(tree):
    """What of a script only CUDA understands; `args.cuda` is the script's own."""
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Constant)) else ""
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "is_cuda"):
            if ast.unparse(node.value) not in ("args", "opt"):
                yield text
        elif re.fullmatch(r"'(cuda(:.*)?|nccl)'", text):
            yield text


def result(source, style="article"):
    """The result of a migration that holds what every migration has to hold."""
    migration = migrate(source, style=style, name="main.py")
    ast.parse(migration.result)
    assert unreported(migration) == []
    again = migrate(migration.result, style=style, name="main.py")
    assert (again.result, again.changes) == (migration.result, ())
    return migration.result


# What becomes of CUDA's names: `import torch` before and NPU after it are added.

USES = {
    "is_available": ("torch.cuda.is_available()", "torch.npu.is_available()"),
    "odd spacing": ("torch . cuda \\\n  .empty_cache ( )", "torch . npu \\\n  .empty_cache ( )"),
    "out of memory": (
        "try: f(device)\nexcept torch.cuda.OutOfMemoryError: pass",
        "try: f(device)\nexcept torch.OutOfMemoryError: pass",
    ),
    "tensor type": ("torch.cuda.FloatTensor(3)", "torch.npu.FloatTensor(3)"),
    "amp": ("with torch.cuda.amp.autocast(): pass", "with torch.npu.amp.autocast(): pass"),
    "channels_last": ("x.to(memory_format=torch.channels_last)", "x.to(memory_format=torch.contiguous_format)"),
    "cuda()": ("x.cuda()", "x.npu()"),
    "unbound": ("list(map(torch.Tensor.cuda, xs))", "list(map(torch.Tensor.npu, xs))"),
    "is_cuda": ("assert x.is_cuda", "assert x.is_npu"),
    "to": ("x.to('cuda')", "x.to('npu')"),
    "f-string": ("x.to(f'cuda:{i}')", "x.to(f'npu:{i}')"),
    "format": ("x.to('cuda:{}'.format(i))", "x.to('npu:{}'.format(i))"),
    "choice": (
        "d = 'cuda' if torch.cuda.is_available() else 'cpu'",
        "d = 'npu' if torch.npu.is_available() else 'cpu'",
    ),
    "type in a string": ("t = x.type('torch.cuda.HalfTensor')", "t = x.type('torch.npu.HalfTensor')"),
    "by device": ("b = {'cpu': 'gloo', 'cuda': 'nccl'}", "b = {'cpu': 'gloo', 'npu': 'hccl'}"),
    "nccl": ("torch.distributed.init_process_group('nccl')", "torch.distributed.init_process_group('hccl')"),
    "loader": (
        "torch.utils.data.DataLoader(d, pin_memory=True)\nd(device)",
        "torch.utils.data.DataLoader(d, pin_memory=False)\nd(device)",
    ),
    "deterministic": (
        "torch.backends.cudnn.deterministic = True  # why",
        "torch.use_deterministic_algorithms(True, warn_only=True)  # why",
    ),
    "environment": (
        "os.environ['CUDA_VISIBLE_DEVICES'] = os.getenv('CUDA_LAUNCH_BLOCKING')\nd(device)",
        "os.environ['ASCEND_RT_VISIBLE_DEVICES'] = os.getenv('ASCEND_LAUNCH_BLOCKING')\nd(device)",
    ),
    "DataParallel": ("m = torch.nn.DataParallel(m)\nm.cuda()", "m.npu()"),
    "DataParallel and what is inside": (
        "net = torch.nn.DataParallel(N())\nnet.cuda()\nnet.module.f(net.module)",
        "net = N()\nnet.npu()\nnet.f(net)",
    ),
    "DataParallel of a choice": ("m = torch.nn.DataParallel(a if b else c).cuda()", "m = (a if b else c).npu()"),
}


@pytest.mark.parametrize("case", USES)
def test_what_becomes_of_a_use(case):
    before, after = USES[case]
    assert result(f"import torch\n{before}\n") == f"{TORCH}{after}\n"


# What is imported, under whatever name.

IMPORTS = {
    "alias": ("import torch as t\nt.cuda.is_available()", "import torch as t\n{npu}t.npu.is_available()"),
    "module as": ("import torch.cuda as tc\ntc.synchronize()", "import torch_npu.npu as tc\n{npu}tc.synchronize()"),
    "module twice": ("import torch\nimport torch.cuda\ntorch.cuda.init()", "import torch\n{npu}torch.npu.init()"),
    "only the inner module": ("import torch.cuda\ntorch.cuda.init()", "import torch\n{npu}torch.npu.init()"),
    "from amp": (
        "from torch.cuda.amp import autocast as ac, GradScaler\nac(); GradScaler()",
        "from torch_npu.npu.amp import autocast as ac, GradScaler\n{npu}ac(); GradScaler()",
    ),
    "over lines": (
        "from torch.cuda.amp import (\n    autocast,  # one\n    GradScaler,\n)",
        "from torch_npu.npu.amp import (\n    autocast,  # one\n    GradScaler,\n)\n{npu}",
    ),
    "function": (
        "from torch.cuda import synchronize as s\ns()",
        "from torch_npu.npu import synchronize as s\n{npu}s()",
    ),
    "half of it": (
        "from torch.cuda import nvtx, synchronize\nsynchronize(nvtx)",
        "from torch.cuda import nvtx, synchronize\nsynchronize(nvtx)",
    ),
    "in try": (
        "try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n    autocast = None\nautocast()",
        "try:\n    from torch_npu.npu.amp import autocast\n    {npu}"
        "except ImportError:\n    autocast = None\nautocast()",
    ),
    "in functions": (
        "def f():\n    import torch\n    return torch.cuda\ndef g():\n  from torch import nn\n  return m.cuda()",
        "def f():\n    import torch\n    {npu}    return torch.npu\n"
        "def g():\n  from torch import nn\n  {npu}  return m.npu()",
    ),
    "future": (
        '"""Text."""\nfrom __future__ import annotations\nfrom torch import nn\nm.cuda()',
        '"""Text."""\nfrom __future__ import annotations\nfrom torch import nn\n{npu}m.npu()',
    ),
    "on one line": ("import os; import torch; x.cuda()", "import os; import torch; import torch_npu; x.npu()"),
    "under a condition": ("if a: import torch\nx.cuda()", "if a: import torch; import torch_npu\nx.npu()"),
    "for types": (
        "if TYPE_CHECKING:\n    import torch\nimport torch\nx.cuda()",
        "if TYPE_CHECKING:\n    import torch\nimport torch\n{npu}x.npu()",
    ),
    "last line": ("x.cuda()\nimport torch", "x.npu()\nimport torch\n{npu}"),
    "no torch": ("def f(x):\n    return x.cuda()", "def f(x):\n    return x.npu()"),
    "there": ("import torch\nimport torch_npu\nx.cuda()", "import torch\nimport torch_npu\nx.npu()"),
    "module": (
        "from torch import cuda\ncuda.synchronize()",
        "from torch_npu import npu as cuda\n{npu}cuda.synchronize()",
    ),
    "another thing of this name": (
        "from torch import cuda\ncuda.synchronize()\ndef f(cuda): cuda.go()",
        "from torch_npu import npu as cuda\n{npu}cuda.synchronize()\ndef f(cuda): cuda.go()",
    ),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_what_becomes_of_an_import(case):
    before, after = IMPORTS[case]
    assert result(before + "\n") == after.replace("{npu}", NPU).rstrip("\n") + "\n"


MODERN = {
    "with torch.cuda.amp.autocast(): pass": 'with torch.amp.autocast("npu"): pass',
    "torch.cuda.amp.autocast(on, torch.half)": 'torch.amp.autocast("npu", enabled=on, dtype=torch.half)',
    "torch.cuda.amp.autocast(\n    enabled=on)": 'torch.amp.autocast(\n    "npu", enabled=on)',
    "torch.cuda.amp.GradScaler(8., enabled=on)": 'torch.amp.GradScaler("npu", 8., enabled=on)',
    "f = torch.cuda.amp.autocast": "f = torch.npu.amp.autocast",  # not called
    "torch.cuda.amp.autocast(*a)": "torch.npu.amp.autocast(*a)",  # not clear
    "@torch.cuda.amp.autocast()\ndef f(): pass": '@torch.amp.autocast("npu")\ndef f(): pass',
    "from torch.cuda.amp import autocast as ac\nac()": f'from torch.amp import autocast as ac\n{NPU}ac("npu")',
    "from torch.cuda import amp\namp.GradScaler()": f'from torch import amp\n{NPU}amp.GradScaler("npu")',
    "from torch.cuda.amp import autocast\nautocast": f"from torch_npu.npu.amp import autocast\n{NPU}autocast",
}


@pytest.mark.parametrize("before", MODERN)
def test_the_modern_style_calls_torch_amp(before):
    first, then = ("", "") if before.startswith("from") else ("import torch\n", TORCH)
    assert result(f"{first}{before}\n", "modern") == f"{then}{MODERN[before]}\n"


# What is not torch's stays.

OTHERS = {
    "local variable": "def f(cuda):\n    return cuda.is_available()",
    "shadowed": "from torch import nn\ndef f(torch):\n    return torch.cuda.is_available()",
    "assigned": "torch = load()\ntorch.cuda.is_available()",
    "other torch": "import numpy as torch\ntorch.cuda.is_available()",
    "module's function": "import numba\nnumba.cuda(1)",
    "imported, with arguments": "from mine import place\nplace.cuda(x)",
    "attribute": "args.cuda = not args.no_cuda\nif args.cuda: f()",
    "keyword": "f(cuda=True)",
    "option": "import argparse\np.add_argument('--cuda', dest='cuda')",
    "entry": "config['cuda'] = True\nconfig = {'cuda': True, 'nccl': False}\nconfig.get('cuda')",
    "attribute by name": "getattr(args, 'cuda')",
    "bytes": "b'cuda'",
    "docstring": "'cuda'",
    "prose": "print('cuda is here', 'uses cuda:0', 'NCCL')",
    "module in prose": "print('cuda:0 is mine')",
    "for both": "d = {'cuda': 1, 'npu': 2, 'cpu': 0}",
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_torchs_stays(case):
    source = f"{OTHERS[case]}\n"
    assert result(source) == source


def test_a_method_that_overrides_torchs_is_renamed_with_it():
    source = "class A(Module):\n    def cuda(self):\n        return super().cuda()\nA().cuda()\nx.is_cuda = args.cuda\n"
    assert result(source) == source.replace("cuda(", "npu(").replace("is_cuda", "is_npu")


# What cannot be changed is told.

LEFT = {  # a line of a script: what a note about it names
    "torch.cuda.nvtx.range_push('a')": "torch.cuda.nvtx",
    "torch.cuda.list_gpu_processes()": "torch.cuda.list_gpu_processes",
    "torch.backends.cudnn.benchmark = f()": "torch.backends.cudnn",
    "print(torch.version.cuda)": "torch.version.cuda",
    "x.to(torch.float64)": "torch.float64",
    "x.double()": "float64",
    "e['NCCL_DEBUG'] = 'INFO'": "NCCL_DEBUG",
    "os.system('nvidia-smi -L')": "nvidia-smi",
    "torch.utils.data.DataLoader(d, shuffle=True)": "drop_last",
    "use_cuda = 1": "use_cuda",
    "from apex.optimizers import FusedAdam": "apex.optimizers",
    "from torch.cuda import nvtx": "torch.cuda.nvtx",
    "a = 1  # CUDA only": "comments and texts",
    "config['cuda']": "the key 'cuda'",
    "net.share_memory()": "share_memory()",
    "torch.distributed.init_process_group('nccl')": "no process chooses its card",
    "f(torch.nn.DataParallel(net))": "inputs stay where they are",
}


@pytest.mark.parametrize("code", LEFT)
def test_what_is_left_is_told_with_its_line(code):
    migration = migrate(f"import torch\n\n{code}\n", name="main.py")
    found = [note for note in migration.notes if LEFT[code] in note.text and note.kind == "left"]
    line = 3 + migration.result.startswith(TORCH)
    assert [(note.line, note.source_line) for note in found] in ([(line, 3)], [(line, 3)] * 2)
    assert f"main.py:{line}" in migration.report() and all(note.advice for note in found)


def test_torch_npu_is_imported_where_it_is_needed_and_before_it_is_used():
    for source in ("f(input, x.device)\n", "def step(inputs, unput): return inputs.to(device)\n"):
        assert result("import torch\n" + source) == "import torch\n" + source
    line = "import torch; x = torch.ones(2).cuda()\n"
    assert result(line) == "import torch; import torch_npu; x = torch.ones(2).npu()\n"


def test_notes_share_words_and_move_along_with_the_lines():
    migration = migrate('"""Needs CUDA."""\n# cuda\nimport torch\nprint("""a\nNCCL b""")  # gpu\n')
    assert [note.lines for note in migration.notes if note.kind == "left"] == [(1, 2, 5)]
    code = "import torch\n\nm = torch.nn.DataParallel(N()).cuda()\nfrom torch.cuda import (\n    nvtx,\n    comm)\n"
    found = {note.text.split(":")[0]: (note.line, note.source_line, note.lines) for note in migrate(code).notes}
    assert found["nn.DataParallel is gone"] == (4, 3, (4,))
    assert found["import of torch.cuda.nvtx"] == (5, 4, (5, 6))
    assert found["import of torch.cuda.comm"] == (5, 4, (5, 7))


def test_what_only_the_user_can_choose():
    source = "import torch\ntorch.distributed.init_process_group('nccl')\ntorch.optim.SGD(p, 0.1)\n"
    notes = {note.text: note for note in migrate(source, name="train.py").notes if note.kind == "choose"}
    assert set(notes) == {"which cards", "address and port", "launch", "batch and learning rate"}
    assert all(word in notes["launch"].advice for word in ("torchrun --nproc_per_node", "train.py"))
    assert (notes["address and port"].line, notes["address and port"].source_line) == (3, 2)
    assert {note.text for note in migrate("import torch\nx.cuda()\n").notes} == {"which cards", "launch"}
    assert migrate("import os\n").notes == ()


# The text is kept.


def kept(migration):
    """The lines of the result that no step wrote are the source without those that a step took out."""
    ends = lambda text: re.findall(r"[^\n]*\n|[^\n]+", text)  # noqa: E731
    written = {change.line for change in migration.changes if not change.removed}
    removed = {change.line for change in migration.changes if change.removed}
    old = [line for n, line in enumerate(ends(migration.source), 1) if n not in removed]
    new = [line for n, line in enumerate(ends(migration.result), 1) if n not in written]
    return old == new


ODD = "import torch\r\nif  a :\r\n\tx = y . cuda ( 0 )  # cuda\r\n\x0c\r\n# é ✓\r\nz = [ 1,\r\n\t 2 , ]\t \r\nx.cuda()"


def test_line_ends_tabs_spaces_and_the_missing_last_line_end_stay():
    migration = migrate(ODD)
    expected = ODD.replace("y . cuda", "y . npu").replace("x.cuda()", "x.npu()")
    assert migration.result == expected.replace("torch\r\n", f"torch\r\n{NPU[:-1]}\r\n", 1)
    assert kept(migration)
    lines = migration.diff().splitlines()
    assert lines[-2:] == ["+x.npu()", "\\ No newline at end of file"]


@pytest.mark.parametrize("end", ["\n\x0c\n\x0c", " \\\n\n", "# a"], ids=repr)
def test_the_end_of_a_file_stays(end):
    assert result(f"import torch\nx.cuda(){end}") == f"{TORCH}x.npu(){end}"


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_a_byte_order_mark_stays(tmp_path, mark):
    path = tmp_path / "main.py"
    path.write_bytes(mark + "import torch\n# é\nx.cuda()\n".encode())
    migration = migrate(path)
    expected = mark + f"{TORCH}# é\nx.npu()\n".encode()
    assert migration.result.encode() == expected and kept(migration)
    path.write_bytes(expected)
    assert migrate(path).changes == ()


@pytest.mark.parametrize("source", ["", "\n", "#", "import torch", "x = 1\n\n", "\ufeff", "\ufeff# a\n"])
def test_what_needs_no_change_gets_none(source):
    migration = migrate(source)
    assert (migration.result, migration.changes, migration.diff(), migration.steps) == (source, (), "", [])
    assert not migration.changed and "nothing to change" in migration.report()


# The diff.


def apply_patch(tmp_path, migration, command):
    (tmp_path / migration.name).write_bytes(migration.source.encode())
    run = subprocess.run(command, input=migration.diff().encode(), cwd=tmp_path, capture_output=True, timeout=300)
    assert run.returncode == 0 and b"fuzz" not in run.stdout, run.stdout + run.stderr
    assert (tmp_path / migration.name).read_bytes() == migration.result.encode()


@pytest.mark.parametrize("command", [["patch", "-p0", "--binary"], ["git", "apply", "-p0"]], ids=["patch", "git"])
@pytest.mark.parametrize("source", [ODD, "import torch\n\nx.cuda()\n\n\nx.to('cuda')\n\n\ny = 1\nm.cuda()\n"])
def test_the_diff_of_an_odd_text_applies(source, command, tmp_path):
    for name in ("main.py", "my main.py"):
        apply_patch(tmp_path, migrate(source, name=name), command)


def hunks(text):
    """(header, lines) of each hunk."""
    parts = re.split(r"^(@@ .*)\n", text, flags=re.M)[1:]
    return list(zip(parts[::2], (part.splitlines() for part in parts[1::2]), strict=True))


STEPPED = "import torch\n\n\n\nm = Net().cuda()\n\nfor x in loader:\n    x = x.cuda()\ntorch.cuda.set_device(1)\n"


def test_every_hunk_names_its_step_and_a_step_has_its_own_diff():
    migration = migrate(STEPPED)
    headers = [header.partition("@@ ")[2].partition("@@ ")[2] for header, _ in hunks(migration.diff())]
    assert headers == [str(STEPS[0]), str(STEPS[10]), f"{STEPS[7]}, {STEPS[14]}"]
    changed = {
        1: ["+" + NPU.strip()],
        8: ["-torch.cuda.set_device(1)", "+torch.npu.set_device(1)"],
        11: ["-m = Net().cuda()", "+m = Net().npu()"],
        15: ["-    x = x.cuda()", "+    x = x.npu()"],
    }
    assert migration.steps == list(changed)
    for step in migration.steps:
        ((header, lines),) = hunks(migration.diff(step=step, context=1))
        assert header.endswith(str(STEPS[step - 1])) and [it for it in lines if it[0] in "+-"] == changed[step]
    assert migration.diff(step=2) == ""
    with pytest.raises(ValueError, match="1 to 17"):
        migration.diff(step=18)


# What is refused.


REFUSED = {"import torch\nprint 'cuda'\n": 2, "x = 1\n\ndef f(:\n": 3, "x.cuda(async=True)\n": 1, "a = 1\n  b = 2\n": 2}
REFUSED |= {"a = 1\nb\rc\n": 2, "x = 1\n\x00\n": None, "x = " + "(" * 500 + ")" * 500 + "\n": None}


@pytest.mark.parametrize("source", REFUSED)
def test_what_does_not_parse_is_refused_with_file_and_line(source):
    with pytest.raises(MigrationError) as caught:
        migrate(source, name="old.py")
    assert isinstance(caught.value, ValueError) and str(caught.value).startswith("old.py:")
    assert REFUSED[source] in (None, caught.value.line)


def test_long_and_deep_expressions_are_read():
    long = " + ".join(f"f{i}(torch.cuda.memory_allocated())" for i in range(900))
    assert result(f"import torch\nx = {long}\n").count("torch.npu") == 900
    with pytest.raises(MigrationError, match="main.py:1: "):
        migrate("x" + ".f()" * 5000 + "\n", name="main.py")


@pytest.mark.parametrize(
    "raw", [b"import torch\n# caf\xe9\n", "# a\n# -*- coding: gbk -*-\nx = '训练'\n".encode("gbk")]
)
def test_what_is_not_utf8_is_refused_with_its_line(tmp_path, raw):
    path = tmp_path / "main.py"
    path.write_bytes(raw)
    with pytest.raises(MigrationError, match=r"main\.py:2: this is .*UTF-8"):
        migrate(path)
    path.write_bytes("# coding: utf_8\nx = 'é'\n".encode())
    assert not migrate(path).changed


def test_what_is_not_there_or_not_known_is_refused():
    with pytest.raises(FileNotFoundError, match="missing.py"):
        migrate("missing.py")
    with pytest.raises(ValueError, match="'old'.*article, modern"):
        migrate("x\n", style="old")


# Whole scripts.


@pytest.mark.parametrize("style", ["article", "modern"])
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_a_script_is_migrated_once_and_completely(path, style):
    migration = migrated(path, style)
    compile(migration.result, str(path), "exec")
    assert migration.changed and unreported(migration) == [] and kept(migration)
    assert list(of_cuda(ast.parse(migration.result))) == []
    assert list(of_cuda(ast.parse(migration.source))), "what finds nothing there would find nothing here"
    again = migrate(migration.result, style=style, name="main.py")
    assert (again.result, again.changes) == (migration.result, ())
