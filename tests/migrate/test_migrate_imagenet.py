"""What migrate makes of scripts in the shape of the ImageNet example, read as text; nothing is trained here."""

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from platforms.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "2020": ROOT / "tests" / "scripts" / "imagenet_2020.py",
    "2022": ROOT / "notebooks" / "scripts" / "imagenet.py",
    "accelerator": ROOT / "tests" / "scripts" / "imagenet_accelerator.py",
}
STYLES = ("article", "modern")

# No name and no import as in the original, two spaces, and one thing more or less in every part.
ODD = '''
from argparse import ArgumentParser

import torch
from torch import nn, optim
from torch.distributed import init_process_group
from torch.multiprocessing import spawn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader


def options():
  ap = ArgumentParser()
  ap.add_argument("folder")
  ap.add_argument("--one-per-card", action="store_true")
  ap.add_argument("--hosts", type=int, default=1)
  ap.add_argument("--host", type=int, default=0)
  ap.add_argument("--device", type=int)
  ap.add_argument("--bs", type=int, default=64)
  return ap.parse_args()


def launch():
  """Start."""
  opt = options()
  opt.parallel = opt.hosts > 1 or opt.one_per_card
  cards = torch.cuda.device_count()
  if opt.one_per_card:
    opt.hosts = cards * opt.hosts
    spawn(run, nprocs=cards, args=(opt, cards))
  else:
    run(opt.device, opt, cards)


def run(proc, o, cards):
  o.device = proc
  if o.parallel:
    if o.one_per_card:
      o.host = o.host * cards + o.device
    init_process_group("nccl", world_size=o.hosts, rank=o.host, init_method="tcp://127.0.0.1:4321")
  net = nn.Sequential(nn.Flatten(), nn.Linear(3, 10))
  if o.parallel:
    torch.cuda.set_device(o.device)
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net.cuda(o.device)
    o.bs //= cards
    net = DDP(net, device_ids=[o.device], find_unused_parameters=True)
    print("wrapped")
  else:
    net.cuda(o.device)
  loss_fn = nn.CrossEntropyLoss().cuda(o.device)
  sgd = optim.SGD(net.parameters(), 0.1)
  plan = lr_scheduler.StepLR(sgd, 30)
  first = 0
  if o.folder:
    state = torch.load(o.folder)
    first = state["epoch"]
    net.load_state_dict(state["net"])
    sgd.load_state_dict(state["sgd"])
  learn = DataLoader(o.folder, batch_size=o.bs, pin_memory=True)
  for epoch in range(first, 90):
    one_epoch(learn, net, loss_fn, sgd, o)
    plan.step()
    if o.device == 0:
      torch.save({"epoch": epoch, "net": net.state_dict(), "sgd": sgd.state_dict()}, "last.pt")


def one_epoch(source, f, measure, opti, o):
  for step, (x, y) in enumerate(source):
    x, y = x.cuda(o.device, non_blocking=True), y.cuda(o.device)
    guess = f(x)
    l = measure(guess, y)
    opti.zero_grad()
    l.backward()
    nn.utils.clip_grad_norm_(f.parameters(), 1.0)
    opti.step()


launch()
'''.lstrip()

TEXTS = {"odd": ODD} | {name: path.read_text(encoding="utf-8") for name, path in SCRIPTS.items()}


@cache
def migrated(text, style="article"):
    """The migration of a text, which a second one leaves as it is."""
    migration = migrate(text, style=style, name="train.py")
    compile(migration.result, "train.py", "exec")
    assert migrate(migration.result, style=style).result == migration.result
    return migration


def function(text, name):
    """The text of a function."""
    found = next(it for it in ast.walk(ast.parse(text)) if isinstance(it, ast.FunctionDef) and it.name == name)
    return ast.get_source_segment(text, found)


def worker(name, style="article"):
    return function(migrated(TEXTS[name], style).result, "run" if name == "odd" else "main_worker")


def in_order(text, *parts):
    """Whether `parts` are in `text`, one after the other."""
    at = 0
    for part in parts:
        assert part in text[at:], f"{part!r} does not follow in\n{text}"
        at = text.index(part, at) + len(part)
    return True


def notes(text, kind="left", style="article"):
    return {note.text: note.advice for note in migrated(text, style).notes if note.kind == kind}


# Whole scripts


@pytest.mark.parametrize("name", TEXTS)
def test_the_parts_of_the_worker_come_in_the_order_that_an_npu_needs(name):
    text = worker(name)
    order = "= process_device_map[|torch.npu.set_device(loc)|init_process_group(|.to(loc)|optim.SGD(|amp.initialize("
    assert in_order(text, *order.split("|"), ", device_ids=[")
    assert in_order(text, "drop_last=True", "optim.SGD(")  # loss and optimizer go behind the loaders
    assert "DataParallel(" not in text.replace("DistributedDataParallel(", "").replace("parallel.Dist", "")
    assert text.count("npu.set_device(") == 1
    if "StepLR" in text:
        assert in_order(text, "amp.initialize(", "StepLR(")


# Steps


def test_arguments_are_added_once_and_the_backend_stays_one():
    result = migrated(TEXTS["2020"]).result
    for (
        option
    ) in "device-list device_list addr port amp opt-level loss-scale loss_scale dist-backend dist_backend".split():
        assert result.count(f'"--{option}"') == 1, option
    assert re.search(r'add_argument\("--dist-backend", "--dist_backend", default="hccl"', result)
    seed = 'parser.add_argument("--seed"'
    for option, own in {"--dist_backend": ', default="hccl", type=str', "--port": ""}.items():
        text = TEXTS["2020"].replace(seed, f'parser.add_argument("{option}"{own})\n{seed}')
        assert migrated(text).result.count(f'"{option}"') == 1


def process_map(devices, count=4):
    scope = {"torch": SimpleNamespace(npu=SimpleNamespace(device_count=lambda: count))}
    exec(function(migrated(TEXTS["2020"]).result, "device_id_to_process_device_map"), scope)
    return scope["device_id_to_process_device_map"](devices)


def test_the_process_map_sorts_cards_and_refuses_what_cannot_be():
    assert process_map("3,1") == {0: 1, 1: 3}
    assert process_map(" 2") == {0: 2}
    assert process_map(None) == {0: 0, 1: 1, 2: 2, 3: 3}
    with pytest.raises(ValueError, match="names a card twice"):
        process_map("1,0,1")
    for devices in ("0,4", "-1"):
        with pytest.raises(ValueError, match="this host has 4 cards"):
            process_map(devices)
    with pytest.raises(ValueError, match="this host has 0 cards"):
        process_map(None, count=0)


@pytest.mark.parametrize("style", STYLES)
def test_the_rendezvous_does_not_override_a_launcher(style):
    main = function(migrated(TEXTS["2020"], style).result, "main")
    assert in_order(main, "parse_args()", '.setdefault("MASTER_ADDR"', '.setdefault("MASTER_PORT"', "mp.spawn(")
    assert in_order(migrated(ODD, style).result, "import os\n", "import torch\n", "os.environ")


@pytest.mark.parametrize("first", [True, False])
def test_init_method_goes_wherever_it_stands(first):
    old, rest = 'init_method="tcp://127.0.0.1:4321"', "world_size=o.hosts, rank=o.host"
    text = ODD.replace(f"{rest}, {old}", f"{old}, {rest}" if first else f"{rest}, {old},")
    assert old not in migrated(text).result and f'init_process_group("hccl", {rest}' in migrated(text).result
    assert '"tcp://127.0.0.1:4321" no longer says where the processes meet' in notes(text)


def test_a_card_that_is_compared_elsewhere_is_told():
    asked = "    model.train()\n    if args.gpu == 0:\n        print('first')\n"
    text = TEXTS["2020"].replace("    model.train()\n", asked)
    assert "args.gpu == 0 compares a card, not a process" in notes(text)


@pytest.mark.parametrize("name", ["2020", "2022", "accelerator", "odd"])
def test_batch_and_workers_are_shared_once_and_only_between_processes(name):
    odd, usual = ("if o.parallel:", "o.bs //= cards"), ("if args.distributed:", "args.batch_size = ")
    condition, batch = odd if name == "odd" else usual
    assert worker(name).count(batch) == 1
    assert re.search(rf"{re.escape(condition)}\n\s+(#.*\n\s+)?{re.escape(batch)}(.|\n)*\.to\(loc\)", worker(name))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_modern_style_knows_torchrun_and_its_own_spawn(name):
    result = migrated(TEXTS[name], "modern").result
    started = 'if "LOCAL_RANK" in os.environ:', "args.multiprocessing_distributed = False"
    assert in_order(function(result, "main"), *started, "args.distributed =", "mp.spawn(")
    assert 'int(os.environ.get("LOCAL_WORLD_SIZE", torch.npu.device_count()))' in result
    placed = "args.gpu = gpu or 0", 'torch.device(f"npu:{args.gpu}")', "torch.npu.set_device(device)"
    assert in_order(worker(name, "modern"), *placed)
    assert "apex" not in result and "device_list" not in result and "process_device_map" not in result


# Variants: (style, script, what is replaced in it, what the result has, in this order, and what it must not have)

VARIANTS = {
    "what stood in the branch stays on its side of DDP": (
        "article",
        ODD,
        {},
        "net = net.to(loc)|convert_sync_batchnorm|optim.SGD|= DDP(net, device_ids=[o.device], "
        'find_unused_parameters=True)|print("wrapped")',
        [],
    ),
    "a loss": ("article", TEXTS["2020"], {}, "criterion = nn.CrossEntropyLoss().to(loc)", []),
    "weights for the CPU": (
        "article",
        ODD,
        {"torch.load(o.folder)": 'torch.load(o.folder, map_location="cpu", weights_only=False)'},
        'torch.load(o.folder, map_location="cpu", weights_only=False)',
        [],
    ),
    "the scaled loss goes backward, and clipping sees the masters": (
        "article",
        ODD,
        {},
        "if o.amp:|with amp.scale_loss(l, opti) as scaled_loss:|scaled_loss.backward()|else:|l.backward()|"
        "clip_grad_norm_(amp.master_params(opti) if o.amp else f.parameters(), 1.0)",
        [],
    ),
    "steps are scaled, and gradients unscaled before clipping": (
        "modern",
        ODD,
        {},
        "one_epoch(learn, net, loss_fn, sgd, o, scaler)|def one_epoch(source, f, measure, opti, o, scaler):|"
        'with torch.autocast("npu", enabled=o.amp):|guess = f(x)|l = measure(guess, y)|opti.zero_grad()|'
        "scaler.scale(l).backward()|scaler.unscale_(opti)|clip_grad_norm_(f.parameters()|scaler.step(opti)|scaler.update()",
        [],
    ),
    "tabs": ("article", ODD, {"  ": "\t"}, "\n\tloc = |\n\t\tnet = DDP(", ["\n    "]),
    "without spawn": (
        "article",
        ODD,
        {"    spawn(run, nprocs=cards, args=(opt, cards))\n": "    run(0, opt, cards)\n"},
        "",
        ["loc ="],
    ),
    "without a parser": ("article", ODD, {"  ap = ArgumentParser()\n": "  ap = lines()\n"}, "", ["loc ="]),
    "without a group": ("modern", ODD, {'    init_process_group("nccl", ': "    meet("}, "", ["set_device(device)"]),
    "spawned for another reason": ("modern", ODD, {"  if opt.one_per_card:\n": "  if cards > 1:\n"}, "", ["scaler"]),
}


@pytest.mark.parametrize("case", VARIANTS)
def test_what_becomes_of_a_variant(case):
    style, text, replaced, parts, absent = VARIANTS[case]
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    result = migrated(text, style).result
    start = result.index("def one_epoch") if parts.startswith("if o.amp") else 0
    assert in_order(result[start:], *parts.split("|"))
    assert [part for part in absent if part in result] == []


# (script, what is replaced, the note about it, what the result must not have, what it has)
UNCLEAR = {
    "loader": (ODD, "learn = DataLoader(", "learn = make(", "which loader is trained on is not clear", "drop_last", ""),
    "int64 labels": (
        ODD,
        "    guess = f(x)\n",
        "    guess = f(x)\n    marks = nn.functional.one_hot(y, 10)\n",
        "y stays int64",
        "torch.int32",
        "",
    ),
    "two optimizers": (
        ODD,
        "  plan = ",
        "  adam = optim.Adam(net.parameters())\n  plan = ",
        "no mixed precision",
        "amp.",
        "net = net.to(loc)",
    ),
    "two statements on a line": (
        ODD,
        "  o.device = proc\n",
        "  o.device = proc; print(o)\n",
        "several statements on one line",
        "loc =",
        "o.device = proc; print(o)",
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_what_is_not_clear_is_left_and_told(case):
    text, old, new, told, absent, kept = UNCLEAR[case]
    assert old in text
    text = text.replace(old, new)
    assert any(note.startswith(told) for note in notes(text))
    result = migrated(text).result
    assert absent not in result and kept in result


def test_a_script_with_autocast_of_its_own_keeps_it():
    text = ODD.replace("    guess = f(x)\n", "    with torch.autocast('cuda'):\n      guess = f(x)\n")
    result = migrated(text).result
    assert "amp.initialize" not in result and "--opt-level" not in result and "with torch.autocast('npu'):" in result
    assert not any(note.startswith("no mixed precision") for note in notes(text))


@pytest.mark.parametrize(
    "test, value, rest",
    [
        ("torch.cuda.is_available()", True, None),
        ("not torch.cuda.is_available() and not torch.backends.mps.is_available()", False, None),
        ("o.device is not None and torch.cuda.is_available()", True, None),
        ("here.type == 'cuda'", True, None),
        ("b == 'nccl'", False, None),
        ("o.parallel and torch.cuda.is_available()", None, "o.parallel and torch.npu.is_available()"),
        ("o.parallel or torch.cuda.is_available()", True, None),
        ("o.parallel or o.device is None", None, "o.parallel or o.device is None"),
    ],
)
def test_conditions_are_settled_where_an_npu_settles_them(test, value, rest):
    branches = f"  if {test}:\n    a = torch.load('1')\n  else:\n    a = torch.load('2')\n  net = nn.Seq"
    result = migrated(ODD.replace("  net = nn.Seq", branches)).result
    found = {True: "torch.load('1'" in result, False: "torch.load('2'" in result}
    assert found == ({True: True, False: True} if value is None else {value: True, not value: False})
    assert value is not None or f"  if {rest}:\n    a = torch.load('1', map_location=loc)\n  else:\n" in result


def test_the_command_to_start_it_is_told():
    spawned = (
        "python train.py --multiprocessing-distributed --world-size 1 --rank 0 --device-list 0,1 --amp --opt-level O2"
    )
    assert spawned in notes(TEXTS["2020"], "choose")["launch"]
    assert "torchrun --nproc_per_node=2 train.py --amp" in notes(TEXTS["2020"], "choose", "modern")["launch"]
    assert "python train.py --one-per-card --hosts 1 --host 0 --device-list 0,1" in notes(ODD, "choose")["launch"]


@pytest.mark.parametrize("style", ["article", "modern"])
def test_the_number_of_a_process_is_not_taken_for_its_card(style):
    source = TEXTS["2020"]
    at = source.index("\n    for epoch in")
    source = source[:at] + "\n    probe = torch.ones(2).cuda(gpu)" + source[at:]
    assert "    probe = torch.ones(2).npu(args.gpu)\n" in migrate(source, style=style, name="main.py").result
