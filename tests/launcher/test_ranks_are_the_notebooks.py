"""What works in a cell works on its ranks: pickling classes of cells, arguments, environment, edited modules."""

import os

import pytest
from kernel import kernel

CLASSES = """
import collections, dataclasses, enum, functools, helpers, multiprocessing, pickle, torch, typing
import torch.distributed as dist
from helpers import launch
class Base:
    def scaled(self): return scale
class Child(Base):
    class Inner: pass
class Phase(enum.Enum):
    TRAIN = 1
Point = collections.namedtuple("Point", "x y")
@dataclasses.dataclass
class Noted:
    of: "typing.Optional[Child]" = None
@dataclasses.dataclass(slots=True)
class Slim:
    a: int
class Net(torch.nn.Linear): pass
class Batch(list): pass
class Refused(ValueError):
    def __init__(self, rank, code):
        super().__init__(f"rank {rank}: {code}")
        self.rank, self.code = rank, code
@functools.lru_cache
def doubled(n): return 2 * n
scale, made = 3, [Child.Inner(), Phase.TRAIN, Point(1, 2), Noted()]
def gathered(made):
    with helpers.distributed("cpu") as world:
        everybody = [None] * world.size
        dist.all_gather_object(everybody, [Child(), *made])
        typing.get_type_hints(Noted)
        return [type(one).__qualname__ for one in everybody[-1]], everybody[0][0].scaled(), doubled(2)
def fold(samples): return Batch(samples)
def square(n): return n * n
def worked(method):
    loader = torch.utils.data.DataLoader(range(4), 2, num_workers=1, collate_fn=fold, multiprocessing_context=method)
    with multiprocessing.get_context(method).Pool(1) as pool:
        return [type(batch).__name__ for batch in loader], pool.map(square, [2, 3])
def refused(): raise Refused(0, 7)
def slim(one): return one, Slim(one.a + 1)
def saved(): torch.save(Net(1, 1), "net.pt")
def caught(call, *args):
    try: return call(*args)
    except helpers.RankError as error: return error
"""
GATHERED = "[(['Child', 'Child.Inner', 'Phase', 'Point', 'Noted'], 3, 4)]"


@pytest.fixture(scope="module", params=["launch", "ranks"])
def notebook(request, tmp_path_factory):
    """A kernel in which `call(fn, *args)` runs a function on a rank, fresh or persistent."""
    with kernel() as k:
        k.value(f"import os; os.chdir({str(tmp_path_factory.mktemp('notebook'))!r})")
        k.value(CLASSES)
        k.value("call = lambda fn, *args: launch(fn, 1, *args, timeout=300)")
        if request.param == "ranks":
            k.value("ranks = helpers.ranks(1, timeout=300); call = ranks")
        yield k


def test_a_rank_pickles_what_cells_define(notebook):
    assert notebook.value("call(gathered, made)") == GATHERED
    assert notebook.value("call(saved); type(torch.load('net.pt', weights_only=False)) is Net") == "True"
    assert notebook.value("[(type(one) is Slim, one.a) for one in call(slim, Slim(3))[0]]") == "[(True, 3), (True, 4)]"
    for method in ("fork", "spawn"):
        assert notebook.value(f"call(worked, {method!r})") == "[(['Batch', 'Batch'], [4, 9])]"


def test_exceptions_of_a_cells_class_arrive_with_what_they_carry(notebook):
    notebook.value("error = caught(call, refused).exception")
    assert notebook.value("type(error) is Refused, vars(error)") == "(True, {'rank': 0, 'code': 7})"


def test_what_was_not_sent_is_named_and_nothing_waits_for_it(notebook):
    notebook.value("class Old(torch.nn.Linear): pass\ntorch.save(Old(1, 1), 'old.pt')")
    text = notebook.value("str(caught(call, lambda: torch.load('old.pt', weights_only=False)))")
    assert "Old" in text and "mention the name in the function" in text
    notebook.value("local = lambda samples: [lambda: samples]")
    notebook.value("def waits(): return list(torch.utils.data.DataLoader([1], num_workers=1, collate_fn=local))")
    assert "DataLoader worker" in notebook.value("str(caught(call, waits))")


def test_the_notebook_keeps_its_own_and_ranks_forget_what_it_deletes(notebook):
    notebook.value("def count():\n    global scale\n    scale += 1\n    return Child(), lambda: scale")
    notebook.value("((child, get),) = call(count); scale = 5")
    assert notebook.value("type(child) is Child, child.scaled(), get()") == "(True, 5, 4)"
    notebook.value("class Child(Base): new = True\ndef new(): return pickle.loads(pickle.dumps(Child())).new")
    assert notebook.value("call(new)") == "[True]"
    notebook.value("def reads(): return gone\ngone = 1; call(reads); del gone")
    assert "NameError" in notebook.value("str(caught(call, reads))")


def test_tracebacks_name_the_cell(notebook):
    notebook.value("def deep():\n    return 1 / 0")
    shown = notebook.run("call(deep)").traceback
    cell = shown.split("Cell In[")[1].split("]")[0]
    assert f"Cell In[{int(cell) - 1}], line 2, in deep\n    return 1 / 0" in shown and "ipykernel_" not in shown
    notebook.value("def sleeps():\n    import time\n    time.sleep(600)")
    again = "ranks(sleeps, timeout=1) if 'ranks' in globals() else launch(sleeps, 1, timeout=1)"
    assert f"Cell In[{int(cell) + 1}], line 3, in sleeps\n    time.sleep(600)" in notebook.run(again).traceback


def test_arguments_folder_and_environment_are_those_of_the_notebook(notebook):
    notebook.value("import os, sys\ndef around(): return sys.argv[1:], os.getcwd(), os.environ.get('PLANTED')")
    folder = notebook.value("print(os.getcwd())")
    assert notebook.value("call(around)") == f"[([], {folder!r}, None)]"
    notebook.value("sys.argv, os.environ['PLANTED'] = ['train.py', '--lr', '1'], 'yes'; os.chdir('..')")
    assert notebook.value("call(around)") == f"[(['--lr', '1'], {os.path.dirname(folder)!r}, 'yes')]"
    notebook.value(f"del os.environ['PLANTED']; os.chdir({folder!r})")
    assert notebook.value("call(around)[0][2] is None") == "True"


def test_edited_modules_are_seen(notebook):
    notebook.value("""
import importlib, pathlib, sys
sys.path.insert(0, "."); sys.dont_write_bytecode = True
edit = pathlib.Path("edited.py").write_text
edit("class Thing:\\n    def say(self): return 1")
import edited
def said(): return edited.Thing().say()
""")
    assert notebook.value("call(said)") == "[1]"
    notebook.value("edit('class Thing:\\n    def say(self): return 22'); importlib.reload(edited)")
    assert notebook.value("call(said)") == "[22]"
    notebook.value("%load_ext autoreload\n%autoreload 2")
    notebook.value("edit('class Thing:\\n    def say(self): return 333')")
    assert notebook.value("said(), call(said)") == "(333, [333])"
    notebook.value("%autoreload 0")


REFUSED = [
    ("async def fn(): pass", "asyncio.run"),
    ("def fn(): yield", "returns a list"),
    ("fn = torch.compile(lambda: 1)", "leave out the decorator"),
    ("def fn():\n    !true", "subprocess.run"),
    (
        "def fn():\n    with helpers.distributed('cpu'):\n"
        "        return [torch.nn.parallel.DistributedDataParallel(Net(1, 1))]",
        "model.module",
    ),
]


@pytest.mark.parametrize("define, words", REFUSED, ids=[words for _, words in REFUSED])
def test_refusals_say_what_to_do(notebook, define, words):
    notebook.value(define)
    assert words in notebook.run("call(fn)").message


def test_variables_that_torch_reads_when_it_is_imported_reach_the_ranks(notebook):
    if notebook.value("'ranks' in globals()") == "True":
        assert "TORCH_LOGS" in notebook.run("os.environ['TORCH_LOGS'] = 'recompiles'; call(int)").stderr
        notebook.value("call.close()")
        notebook.value("call = ranks = helpers.ranks(1, timeout=300)")
    else:
        notebook.value("call = lambda fn: launch(fn, 1, env={'TORCH_LOGS': 'recompiles'})")
    notebook.value(
        "def logs(): import torch._logging._internal as l; return 'recompiles' in l.log_state.artifact_names"
    )
    assert notebook.value("call(logs)") == "[True]"
    level = "launch(lambda: dist.get_debug_level().name, 1, env={'TORCH_DISTRIBUTED_DEBUG': 'INFO'})"
    assert notebook.value(level) == "['INFO']"
