"""What migrate makes of scripts in the shape of the ImageNet example, read as text; nothing is trained here."""

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.migrate import migrate
from helpers.migrate.notes import Notes
from helpers.migrate.passes import PASSES, advise_on_launch
from helpers.migrate.passes.branches import Facts, render
from helpers.migrate.script import Script

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "2020": ROOT / "helpers" / "migrate" / "examples" / "imagenet.py",
    "2022": ROOT / "tests" / "scripts" / "imagenet_2022.py",
    "accelerator": ROOT / "tests" / "scripts" / "imagenet_accelerator.py",
}
STYLES = ("article", "modern")

# No name and no import as in the original, two spaces, and one thing more or less in every part.
ODD = '''
from argparse import ArgumentParser

import torch
from torch import nn, optim
from torch.distributed import all_reduce, init_process_group
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
    seen = torch.tensor([l.item()], dtype=torch.float64)
    all_reduce(seen)


launch()
'''.lstrip()

# One function does it all, always in several processes, and args has no place for the card.
PLAIN = '''
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('-g', '--gpus', default=1, type=int)
    args = parser.parse_args()
    args.world_size = args.gpus
    os.environ['MASTER_ADDR'] = '127.0.0.1'
    mp.spawn(train, nprocs=args.gpus, args=(args,))


def train(gpu, args):
    rank = gpu
    dist.init_process_group(backend='nccl', init_method='env://', world_size=args.world_size, rank=rank)
    model = nn.Linear(3, 2)
    torch.cuda.set_device(gpu)
    model.cuda(gpu)
    criterion = nn.CrossEntropyLoss().cuda(gpu)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    loader = torch.utils.data.DataLoader([], batch_size=8)
    for epoch in range(2):
        for i, (images, labels) in enumerate(loader):
            images = images.cuda(non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if gpu == 0:
                print(loss.item())


if __name__ == '__main__':
    main()
'''.lstrip()


def source(name):
    return {"odd": ODD, "plain": PLAIN}.get(name) or SCRIPTS[name].read_text(encoding="utf-8")


@cache
def structural(text, style="article"):
    """(result, notes) of the passes for this shape alone, before the general ones."""
    notes = Notes()
    for one in PASSES[: PASSES.index((advise_on_launch,)) + 1]:
        script = Script(text, "train.py", style, notes)
        one[0](script)
        text = [text, *(after for _, after in script.edited())][-1]
        compile(text, one[0].__name__, "exec")
    return text, notes.final(list(range(9999)))


@cache
def whole(name, style):
    return migrate(source(name), style=style, name="main.py")


def body(text, name):
    """The text of a function."""
    module = ast.parse(text)
    found = next(it for it in ast.walk(module) if isinstance(it, ast.FunctionDef) and it.name == name)
    return ast.get_source_segment(text, found)


def in_order(text, *parts):
    """Whether `parts` are in `text`, one after the other."""
    places = [text.find(part) for part in parts]
    assert -1 not in places, f"missing: {parts[places.index(-1)]}"
    return places == sorted(places)


def left(notes):
    return [note.text for note in notes if note.kind == "left"]


# Whole scripts


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_of_every_age_leave_no_cuda_and_change_only_once(name, style):
    migration = whole(name, style)
    words = {getattr(it, "id", getattr(it, "attr", "")) for it in ast.walk(ast.parse(migration.result))}
    texts = {it.value for it in ast.walk(ast.parse(migration.result)) if isinstance(it, ast.Constant)}
    assert not {word for word in words if re.search("cuda|nccl|mps", word)}
    assert not {text for text in texts if isinstance(text, str) and re.fullmatch("cuda.*|nccl|mps", text)}
    assert migrate(migration.result, style=style).result == migration.result
    expected = set(range(1, 17)) - ({3, 11} if style == "modern" else set())
    assert expected - {10} <= set(migration.steps)  # 10: a loss on its torch.device may stay


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["2020", "2022", "accelerator", "odd", "plain"])
def test_the_passes_of_this_shape_change_their_own_result_no_more(name, style):
    result, _ = structural(source(name), style)
    assert structural(result, style)[0] == result


@pytest.mark.parametrize("name", ["2020", "2022", "accelerator", "odd"])
def test_the_parts_of_the_worker_come_in_the_order_that_an_npu_needs(name):
    worker = body(structural(source(name))[0], "run" if name == "odd" else "main_worker")
    assert in_order(
        worker, "= process_device_map[", "torch.npu.set_device(loc)", "init_process_group(", ".to(loc)", "optim.SGD(",
        "amp.initialize(", ", device_ids=[", "torch.load(", "drop_last=True",
    )  # fmt: skip
    assert "DataParallel(" not in worker.replace("DistributedDataParallel(", "").replace("parallel.Dist", "")
    assert worker.count(".set_device(") == 1
    if "StepLR" in worker:
        assert in_order(worker, "amp.initialize(", "StepLR(")


def test_comments_and_lines_of_other_parts_stay():
    kept = set(whole("2020", "article").result.splitlines())
    for function in ("save_checkpoint", "adjust_learning_rate", "accuracy"):
        assert set(body(source("2020"), function).splitlines()) <= kept
    assert "        # From here on the world is counted in processes, one for every GPU of every host." in kept


def test_every_change_has_its_step():
    migration = whole("2020", "article")
    steps = {change.text.strip(): change.step for change in migration.changes if not change.removed}
    for start, step in {
        "from apex import amp": 1, 'parser.add_argument("--amp"': 2, "def device_id_to": 3, "os.environ.setdefault": 4,
        "ngpus_per_node = len": 5, "args.gpu = process_device_map[gpu]": 6, "dist.init_process_group": 7, "loc =": 8,
        "torch.npu.set_device": 8, "args.batch_size = ": 8, "model = model.to": 9, "criterion =": 10,
        "if args.amp:": 16, "model, optimizer = amp": 11, "checkpoint = torch.load": 12, "dist.barrier": 12,
        "num_workers=args.workers, pin_memory=False, sampler": 13, 'print(f"Epoch {epoch}: learning rate': 14,
        "target = target.to": 15, "with amp.scale_loss": 16,
    }.items():  # fmt: skip
        assert {steps[text] for text in steps if text.startswith(start)} == {step}, start


# Steps


def test_arguments_are_added_once_and_the_backend_stays_one():
    result, _ = structural(source("2020"))
    for option in ("--device-list", "--device_list", "--addr", "--port", "--amp", "--opt-level", "--loss-scale",
                   "--loss_scale", "--dist-backend", "--dist_backend"):  # fmt: skip
        assert result.count(f'"{option}"') == 1, option
    assert re.search(r'add_argument\("--dist-backend", "--dist_backend", default="hccl"', result)


def test_of_two_backend_arguments_the_second_goes():
    twice = source("2020").replace(
        'parser.add_argument("--seed"',
        'parser.add_argument("--dist_backend", default="hccl", type=str)\nparser.add_argument("--seed"',
    )
    result, _ = structural(twice)
    assert result.count("dist_backend") == source("2020").count("dist_backend")
    assert 'parser.add_argument("--dist-backend", default="hccl"' in result


def test_arguments_that_the_script_has_are_not_added():
    seed = 'parser.add_argument("--seed"'
    own = source("2020").replace(seed, f'parser.add_argument("--port")\n{seed}')
    assert structural(own)[0].count('"--port"') == 1


def test_a_script_that_sets_the_address_itself_gets_no_arguments_for_it():
    result, notes = structural(PLAIN)
    assert "'--device-list'" in result and "--addr" not in result and "--port" not in result
    assert result.count("MASTER_ADDR") == 1
    assert "MASTER_PORT" in next(note.advice for note in notes if note.text == "address and port")


def process_map(devices, count=4):
    scope = {"torch": SimpleNamespace(npu=SimpleNamespace(device_count=lambda: count))}
    exec(body(structural(source("2020"))[0], "device_id_to_process_device_map"), scope)
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
    main = body(structural(source("2020"), style)[0], "main")
    assert in_order(main, "parse_args()", '.setdefault("MASTER_ADDR"', '.setdefault("MASTER_PORT"', "mp.spawn(")


def test_without_an_import_of_os_there_is_one():
    result, _ = structural(ODD)
    assert in_order(result, "import os\n", "import torch\n", "os.environ")


@pytest.mark.parametrize(
    "call, expected",
    [
        ("backend=b, init_method=u, world_size=w, rank=r", "backend=b, world_size=w, rank=r"),
        ("b, u, world_size=w, rank=r", None),
        ("init_method=u, backend=b, world_size=w, rank=r", "backend=b, world_size=w, rank=r"),
        ("backend=b, world_size=w, rank=r, init_method=u", "backend=b, world_size=w, rank=r"),
        ("backend=b, init_method=u,\n        world_size=w, rank=r", "backend=b,\n        world_size=w, rank=r"),
        ("backend=b, world_size=w, rank=r, init_method=u,", "backend=b, world_size=w, rank=r,"),
    ],
)
def test_init_method_goes_wherever_it_stands(call, expected):
    text = PLAIN.replace("backend='nccl', init_method='env://', world_size=args.world_size, rank=rank", call)
    assert f"init_process_group({expected or call})" in structural(text)[0]


def test_a_number_that_counted_processes_does_not_become_a_card():
    worker = body(structural(ODD)[0], "run")
    assert "o.host = o.host * cards + proc" in worker
    assert "if proc == 0:" in worker


def test_a_card_that_is_compared_elsewhere_is_told():
    asked = "    model.train()\n    if args.gpu == 0:\n        print('first')\n"
    text = source("2020").replace("    model.train()\n", asked)
    assert "args.gpu == 0 compares a card, not a process" in left(structural(text)[1])


@pytest.mark.parametrize("name", ["2020", "2022", "accelerator", "odd"])
def test_batch_and_workers_are_shared_once_and_only_between_processes(name):
    worker = body(structural(source(name))[0], "run" if name == "odd" else "main_worker")
    odd, usual = ("if o.parallel:", "o.bs //= cards"), ("if args.distributed:", "args.batch_size = ")
    condition, batch = odd if name == "odd" else usual
    assert worker.count(batch) == 1
    shares = worker[worker.rindex(condition, 0, worker.index(batch)) : worker.index(batch)]
    assert "raise ValueError(" in shares and "is too small for" in shares
    assert in_order(worker, batch, ".to(loc)")


def test_what_stood_in_the_branch_stays_on_its_side_of_ddp():
    worker = body(structural(ODD)[0], "run")
    assert in_order(worker, "net = net.to(loc)", "convert_sync_batchnorm", "optim.SGD", "= DDP(", 'print("wrapped")')
    assert "DDP(net, device_ids=[o.device], find_unused_parameters=True)" in worker
    modern = body(structural(ODD, "modern")[0], "run")
    assert "net = DDP(net, device_ids=[o.device], find_unused_parameters=True)" in modern


def test_the_model_moves_before_an_optimizer_that_was_made_early():
    early = PLAIN.replace("    torch.cuda.set_device(gpu)\n    model.cuda(gpu)\n", "").replace(
        "    model = nn.parallel", "    model.cuda(gpu)\n    model = nn.parallel"
    )
    worker = body(structural(early)[0], "train")
    assert in_order(worker, "model = model.to(loc)", "optim.SGD(", "amp.initialize(")
    assert worker.count("model.to(") == 1 and "model.cuda" not in worker


def test_a_model_that_was_made_on_the_device_stays_one_statement():
    made = PLAIN.replace("nn.Linear(3, 2)", "nn.Linear(3, 2).cuda(gpu)").replace("    model.cuda(gpu)\n", "")
    assert "model = nn.Linear(3, 2).to(loc)" in structural(made)[0]


def test_a_loss_moves_to_the_card_unless_it_is_on_its_device_already():
    assert "criterion = nn.CrossEntropyLoss().to(loc)" in structural(source("2020"))[0]
    assert "loss_fn = nn.CrossEntropyLoss().to(device)" in structural(ODD, "modern")[0]
    assert "nn.CrossEntropyLoss().to(device)" in structural(source("2022"))[0]


def test_loss_scale_minus_one_is_dynamic():
    call = next(it for it in ast.walk(ast.parse(structural(source("2020"))[0])) if is_call(it, "initialize"))
    scale = compile(ast.Expression(next(it.value for it in call.keywords if it.arg == "loss_scale")), "scale", "eval")
    assert eval(scale, {"args": SimpleNamespace(loss_scale=-1.0)}) == "dynamic"
    assert eval(scale, {"args": SimpleNamespace(loss_scale=1024.0)}) == 1024.0


def is_call(node, name):
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("style", STYLES)
def test_a_checkpoint_is_read_onto_the_card_and_carries_everything(name, style):
    worker = body(structural(source(name), style)[0], "main_worker")
    place, key = ("loc", "amp") if style == "article" else ("device", "scaler")
    assert worker.count("torch.load(") == 1 and f"map_location={place})" in worker
    assert "best_acc1.to(" not in worker
    assert worker.count(f'"{key}"') == 3  # asked for, loaded, saved
    assert ('"scheduler"' in worker) == (name != "2020")
    assert "if not args.distributed or args.rank % ngpus_per_node == 0:" in worker
    assert in_order(worker, "args.rank % ngpus_per_node == 0", "dist.barrier()")


def test_the_state_of_a_schedule_that_was_forgotten_is_saved_and_loaded():
    worker = body(structural(ODD)[0], "run")
    assert 'if "scheduler" in state:' in worker and '"scheduler": plan.state_dict()' in worker


def test_weights_for_the_cpu_are_still_read_onto_the_cpu():
    text = ODD.replace("torch.load(o.folder)", 'torch.load(o.folder, map_location="cpu", weights_only=False)')
    assert 'torch.load(o.folder, map_location="cpu", weights_only=False)' in structural(text)[0]


def test_everyone_writing_becomes_one_writer():
    text = ODD.replace("    if o.device == 0:\n      torch.save", "    torch.save")
    worker = body(structural(text)[0], "run")
    assert "    if not o.parallel or o.host % cards == 0:\n      torch.save(" in worker


@pytest.mark.parametrize("name", ["2020", "2022", "accelerator"])
def test_only_the_training_loader_drops_its_last_batch(name):
    result = whole(name, "article").result
    loaders = {it.targets[0].id: it.value for it in ast.walk(ast.parse(result)) if is_loader(it)}
    words = {key: {it.arg: it.value for it in call.keywords} for key, call in loaders.items()}
    assert [key for key in words if "drop_last" in words[key]] == ["train_loader"]
    assert all(words[key]["pin_memory"].value is False for key in words)
    assert in_order(result, "train_loader = ", "if args.evaluate:", "if len(train_loader) == 0:", "for epoch in range(")


def is_loader(node):
    return isinstance(node, ast.Assign) and is_call(node.value, "DataLoader")


def test_a_training_loader_that_is_not_found_is_told():
    text = ODD.replace("learn = DataLoader(", "learn = make(")
    result, notes = structural(text)
    assert "drop_last" not in result and "which loader is trained on is not clear" in left(notes)


@pytest.mark.parametrize("name", ["2020", "2022", "odd"])
def test_the_schedule_stays_and_shows_itself(name):
    result, _ = structural(source(name))
    train = "one_epoch(" if name == "odd" else "train(train_"
    assert in_order(result, "for epoch in range(", ": learning rate {", train)
    shown = "if not o.parallel or o.host == 0:" if name == "odd" else "if not args.distributed or args.rank == 0:"
    assert re.search(re.escape(shown) + r"\n\s+print\(", result)
    assert ("adjust_learning_rate(optimizer, epoch, args)" if name == "2020" else ".step()") in result


@pytest.mark.parametrize("function", ["train", "validate"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_images_and_int32_labels_go_to_the_card_whatever_happens(name, function):
    text = body(structural(source(name))[0], function)
    place = r'(f"npu:\{args.gpu\}"|device)'
    assert re.search(rf"images = images\.to\({place}", text)
    assert re.search(rf"target = target\.to\(torch\.int32\)\.to\({place}", text)
    assert "is_available" not in text.split("for ")[-1] and "if args.gpu" not in text


def test_a_label_that_has_to_be_int64_stays_so():
    text = ODD.replace("    guess = f(x)\n", "    guess = f(x)\n    marks = nn.functional.one_hot(y, 10)\n")
    result, notes = structural(text)
    assert "torch.int32" not in result
    assert any(note.startswith("y stays int64") for note in left(notes))


def test_images_that_data_parallel_would_have_scattered_are_moved():
    text = PLAIN.replace("            images = images.cuda(non_blocking=True)\n", "")
    moved = "images = images.to(loc)", "labels = labels.to(torch.int32).to(loc)"
    assert in_order(structural(text)[0], *moved, "model(images)")


def test_lists_of_images_are_moved_one_by_one():
    text = PLAIN.replace("images = images.cuda(non_blocking=True)", "images[0] = images[0].cuda(gpu)").replace(
        "model(images)", "model(images[0])"
    )
    assert "images[0] = images[0].to(loc)" in structural(text)[0]
    assert "images = images" not in structural(text)[0]


def test_a_list_that_is_made_on_the_card_is_not_moved_again():
    text = PLAIN.replace("images = images.cuda(non_blocking=True)", "images = [it.cuda() for it in images]")
    assert "images = [it.cuda() for it in images]" in structural(text)[0]
    assert "images.to(" not in structural(text)[0]


@pytest.mark.parametrize(
    "made, expected",
    [
        ("torch.FloatTensor([a, b])", 'torch.tensor([a, b], dtype=torch.float32, device="npu")'),
        ("torch.tensor([a, b], dtype=torch.float64)", 'torch.tensor([a, b], dtype=torch.float32, device="npu")'),
        ("torch.zeros(2, device='cpu')", 'torch.zeros(2, device="npu")'),
        ("torch.tensor([a], device=here)", "torch.tensor([a], device=here)"),
        ("model(x)", "model(x)"),
    ],
)
def test_what_is_added_up_over_cards_is_on_a_card(made, expected):
    head = 'import torch\nimport torch.distributed as dist\n\nB = "nccl"\n\n'
    text = f"{head}def total():\n    t = {made}\n    dist.all_reduce(t)\n"
    assert f"    t = {expected}\n" in structural(text)[0]
    with_gloo = text.replace("nccl", "gloo")
    assert structural(with_gloo)[0] == with_gloo


def test_the_scaled_loss_is_what_goes_backward_and_clipping_sees_the_masters():
    loop = body(structural(ODD)[0], "one_epoch")
    scaled = "if o.amp:", "with amp.scale_loss(l, opti) as scaled_loss:", "scaled_loss.backward()"
    assert in_order(loop, *scaled, "else:", "l.backward()")
    assert "clip_grad_norm_(amp.master_params(opti) if o.amp else f.parameters(), 1.0)" in loop


# The modern style


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_modern_style_knows_torchrun_and_its_own_spawn(name):
    result, _ = structural(source(name), "modern")
    main, worker = body(result, "main"), body(result, "main_worker")
    started = 'if "LOCAL_RANK" in os.environ:', "args.multiprocessing_distributed = False"
    assert in_order(main, *started, "args.distributed =")
    assert 'int(os.environ.get("LOCAL_WORLD_SIZE", torch.npu.device_count()))' in main and "mp.spawn(" in main
    assert in_order(worker, "args.gpu = gpu or 0", 'torch.device(f"npu:{args.gpu}")', "torch.npu.set_device(device)")
    assert "apex" not in result and "device_list" not in result and "process_device_map" not in result


def test_the_modern_style_scales_steps_and_unscales_before_clipping():
    loop = body(structural(ODD, "modern")[0], "one_epoch")
    assert in_order(
        loop, 'with torch.autocast("npu", enabled=o.amp):', "guess = f(x)", "l = measure(guess, y)", "opti.zero_grad()",
        "scaler.scale(l).backward()", "scaler.unscale_(opti)", "clip_grad_norm_(f.parameters()", "scaler.step(opti)",
        "scaler.update()",
    )  # fmt: skip
    assert "one_epoch(learn, net, loss_fn, sgd, o, scaler)" in structural(ODD, "modern")[0]
    assert loop.startswith("def one_epoch(source, f, measure, opti, o, scaler):")


def test_the_modern_diff_is_shorter():
    lengths = [len(whole("2020", style).changes) for style in STYLES]
    assert lengths[1] < lengths[0]


# Scripts with a part missing


@pytest.mark.parametrize(
    "old, new",
    [
        ("    spawn(run, nprocs=cards, args=(opt, cards))\n", "    run(0, opt, cards)\n"),  # no spawn
        ("  ap = ArgumentParser()\n", "  ap = lines()\n"),  # another kind of command line
        ('    init_process_group("nccl", ', "    meet("),
        ("  if opt.one_per_card:\n", "  if cards > 1:\n"),  # the worker cannot ask this
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_without_the_whole_shape_nothing_of_it_is_done(old, new, style):
    text = ODD.replace(old, new).replace("all_reduce(seen)", "print(seen)")
    assert text.count(new) and structural(text, style)[0] == text


def test_two_optimizers_get_no_mixed_precision_but_all_the_rest():
    text = ODD.replace("  plan = ", "  adam = optim.Adam(net.parameters())\n  plan = ")
    result, notes = structural(text)
    assert "--amp" not in result and "amp." not in result and "net = net.to(loc)" in result
    assert any(note.startswith("no mixed precision") for note in left(notes))
    assert "= DDP(net, device_ids=[o.device], find" in result


def test_a_script_with_autocast_of_its_own_keeps_it():
    text = ODD.replace("    guess = f(x)\n", "    with torch.autocast('cuda'):\n      guess = f(x)\n")
    result, notes = structural(text)
    assert "amp.initialize" not in result and "--opt-level" not in result and "with torch.autocast('cuda'):" in result
    assert not any(note.startswith("no mixed precision") for note in left(notes))


def test_what_shares_a_line_is_left_and_told():
    text = ODD.replace("  o.device = proc\n", "  o.device = proc; print(o)\n")
    result, notes = structural(text)
    assert "o.device = proc; print(o)" in result
    assert "several statements on one line" in left(notes)


def test_tabs_and_other_line_ends_stay():
    tabs = ODD.replace("  ", "\t")
    result, _ = structural(tabs)
    assert "\n\tloc = " in result and "\n\t\tnet = DDP(" in result and "\n    " not in result
    dos = structural(PLAIN.replace("\n", "\r\n"))[0]
    assert dos.count("\n") == dos.count("\r\n")


# Conditions


@pytest.mark.parametrize(
    "test, value, rest",
    [
        ("torch.cuda.is_available()", True, None),
        ("not torch.cuda.is_available() and not torch.backends.mps.is_available()", False, None),
        ("o.device is not None and torch.cuda.is_available()", True, None),
        ("o.device is None", False, None),
        ("here.type == 'cuda'", True, None),
        ("here.type != 'cuda'", False, None),
        ("b == 'nccl'", False, None),
        ("o.parallel", None, "o.parallel"),
        ("o.parallel and torch.cuda.is_available()", None, "o.parallel"),
        ("o.parallel or torch.cuda.is_available()", True, None),
        ("o.parallel or o.device is None", None, "o.parallel"),
        ("o.device == 1", None, "o.device == 1"),
    ],
)
def test_conditions_are_settled_where_an_npu_settles_them(test, value, rest):
    text = ODD.replace("  net = nn.Seq", f"  if {test}:\n    a = 1\n  else:\n    a = 2\n  net = nn.Seq")
    facts = Facts(Script(text, "main.py", "article", Notes()).shape)
    node = next(it for it in facts.shape.worker.body if isinstance(it, ast.If) and ast.unparse(it.body[0]) == "a = 1")
    assert facts.known(node.test) is value
    folded = render(facts.script, facts.fold([node]), "")
    assert folded == {True: "a = 1\n", False: "a = 2\n", None: f"if {rest}:\n  a = 1\nelse:\n  a = 2\n"}[value]


# What only the user can choose


def test_the_command_to_start_it_is_told():
    notes = {note.text: note.advice for note in structural(source("2020"))[1] if note.kind == "choose"}
    spawned = "python train.py --multiprocessing-distributed --world-size 1 --rank 0 --device-list 0,1"
    assert f"{spawned} --amp --opt-level O2 DATA." in notes["launch"] and "--port" in notes["address and port"]
    assert set(notes) == {"launch", "which cards", "address and port", "batch and learning rate"}
    modern = {note.text: note.advice for note in structural(source("2020"), "modern")[1] if note.kind == "choose"}
    assert "torchrun --nproc_per_node=2 train.py --amp DATA" in modern["launch"]
    odd = next(note.advice for note in structural(ODD)[1] if note.text == "launch")
    assert "python train.py --one-per-card --hosts 1 --host 0 --device-list 0,1" in odd
