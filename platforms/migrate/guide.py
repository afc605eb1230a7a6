"""Huawei's guide to manual migration as data: each of its sixteen steps as old and new lines of examples/imagenet.py.

    script([1, 2, 3])           # the example after three steps
    script(leave_out=[6])       # all steps but one

The order, the places and what is written are the guide's ("single host, several cards"); the lines are those of our
example. `OURS` is what the guide lacks: the script needs the first part to run, and a trainer the others.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).parent / "examples" / "imagenet.py"
PORT = "29688"  # the guide: any that is free


@dataclass(frozen=True)
class GuideStep:
    """A step of the guide: where it edits main.py, and its `edits`, (old, new) each; the last one has none."""

    number: int
    title: str
    place: str
    edits: tuple

    def diff(self):
        """The edits as a diff, with the place in its head."""
        parts = [f"@@ {self.place} @@\n"]
        for old, new in self.edits:
            lines = difflib.ndiff(old.splitlines(keepends=True), new.splitlines(keepends=True))
            parts += [line[0] + line[2:].removesuffix("\n") + "\n" for line in lines if line[0] != "?"]
        return "".join(parts)

    def apply(self, text):
        """`text` with the step done; ValueError where the old lines are not there."""
        for old, new in self.edits:
            if text.count(old) != 1:
                count = text.count(old)
                raise ValueError(f"step {self.number} needs these lines once, and finds them {count} times:\n{old}")
            text = text.replace(old, new)
        return text


def between(first, last, text):
    """The lines of `text` from the one that starts with `first` to the one that ends with `last`."""
    start = text.index(first)
    return text[start : text.index(last, start) + len(last)]


_TEXT = EXAMPLE.read_text(encoding="utf-8")
_MODEL = between("    if not torch.cuda.is_available() and", "torch.nn.DataParallel(model).cuda()\n", _TEXT)
_LOSS = between("    # loss, optimizer and learning", "=> no checkpoint found at '{args.resume}'\")\n", _TEXT)
_BATCH = between("                if args.gpu is not", "target.cuda(args.gpu, non_blocking=True)\n", _TEXT)
_SAVE = between("            save_checkpoint({", "}, is_best)\n", _TEXT)
_METER = between("        if torch.cuda.is_available():\n            device =", 'torch.device("cpu")\n', _TEXT)
_ARGUMENTS = """parser.add_argument("--device", default="npu", type=str, help="npu or gpu")
parser.add_argument("--addr", default="127.0.0.1", type=str, help="master addr")
parser.add_argument("--device_list", default="0,1,2,3,4,5,6,7", type=str, help="device id list")
parser.add_argument("--amp", default=False, action="store_true", help="use amp to train the model")
parser.add_argument("--loss_scale", default=1024.0, type=float, help="loss scale of amp, -1 means dynamic")
parser.add_argument("--opt_level", default="O2", type=str, help="level of amp")
"""
_BACKEND = 'parser.add_argument("--dist_backend", default="hccl", type=str, help="distributed backend")\n'
_MAP = """def device_id_to_process_device_map(device_list):
    devices = device_list.split(",")
    devices = [int(x) for x in devices]
    devices.sort()

    process_device_map = dict()
    for process_id, device_id in enumerate(devices):
        process_device_map[process_id] = device_id

    return process_device_map


"""
_GROUP = """dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url,
                                world_size=args.world_size, rank=args.rank)
"""
_REBUILT = """    model = model.to(loc)
    # loss and optimizer
    criterion = nn.CrossEntropyLoss().to(loc)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)

    if args.amp:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, loss_scale=args.loss_scale)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])

    # resume from a checkpoint
    if args.resume:
        if os.path.isfile(args.resume):
            checkpoint = torch.load(args.resume, map_location=loc)
            args.start_epoch = checkpoint["epoch"]
            best_acc1 = checkpoint["best_acc1"]
            model.load_state_dict(checkpoint["state_dict"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            if args.amp:
                amp.load_state_dict(checkpoint["amp"])
            print(f"=> loaded checkpoint '{args.resume}' (epoch {args.start_epoch})")
        else:
            print(f"=> no checkpoint found at '{args.resume}'")

    cudnn.benchmark = True

"""
_ONE_SAVE = _SAVE.replace('                "scheduler": scheduler.state_dict(),\n', "")
_SAVES = (
    "            if args.amp:\n"
    + "".join(f"    {line}\n" for line in _ONE_SAVE.splitlines()).replace(
        "                }, is_best)", '                    "amp": amp.state_dict(),\n                }, is_best)'
    )
    + "            else:\n"
    + "".join(f"    {line}\n" for line in _ONE_SAVE.splitlines())
)
_TO_CARD = """loc = f"npu:{args.gpu}"
target = target.to(torch.int32)
images, target = images.to(loc, non_blocking=False), target.to(loc, non_blocking=False)
"""


def _indented(text, width):
    return "".join(" " * width + line for line in text.splitlines(keepends=True))


GUIDE = tuple(
    GuideStep(number, *step)
    for number, step in enumerate(
        (
            (
                "imports",
                "head of main.py",
                (("import torch\n", "import torch\nimport torch_npu\nfrom apex import amp\n"),),
            ),
            ("arguments", "the parser", (("best_acc1 = 0\n\n", f"{_ARGUMENTS}{_BACKEND}best_acc1 = 0\n\n"),)),
            ("process map", "before main()", (("def main():\n", f"{_MAP}def main():\n"),)),
            (
                "address and port",
                "main()",
                (
                    (
                        "    args = parser.parse_args()\n",
                        '    args = parser.parse_args()\n    os.environ["MASTER_ADDR"] = args.addr\n'
                        f'    os.environ["MASTER_PORT"] = "{PORT}"\n',
                    ),
                ),
            ),
            (
                "processes per host",
                "main()",
                (
                    (
                        "    if torch.cuda.is_available():\n        ngpus_per_node = torch.cuda.device_count()\n"
                        "    else:\n        ngpus_per_node = 1\n",
                        "    args.process_device_map = device_id_to_process_device_map(args.device_list)\n"
                        '    if args.device == "npu":\n        ngpus_per_node = len(args.process_device_map)\n'
                        "    else:\n        ngpus_per_node = torch.cuda.device_count()\n",
                    ),
                ),
            ),
            (
                "card of this process",
                "main_worker()",
                (("    args.gpu = gpu\n", "    args.gpu = args.process_device_map[gpu]\n"),),
            ),
            (
                "process group",
                "main_worker()",
                (
                    (
                        f"        {_GROUP}",
                        '        if args.device == "npu":\n'
                        "            dist.init_process_group(backend=args.dist_backend,  # init_method=args.dist_url,\n"
                        "                                    world_size=args.world_size, rank=args.rank)\n"
                        f"        else:\n            {_GROUP.replace('    world', '        world')}",
                    ),
                ),
            ),
            (
                "card and shares for branches",
                "main_worker()",
                (
                    (
                        _MODEL,
                        '    loc = f"npu:{args.gpu}"\n    torch_npu.npu.set_device(loc)\n'
                        "    args.batch_size = int(args.batch_size / ngpus_per_node)\n"
                        "    args.workers = int((args.workers + ngpus_per_node - 1) / ngpus_per_node)\n",
                    ),
                ),
            ),
            (
                "loss, optimizer, resume and scheduler out",
                "main_worker()",
                (
                    (_LOSS, ""),
                    ("        scheduler.step()\n\n", ""),
                ),
            ),
            (
                "data loaders",
                "main_worker()",
                (
                    (
                        "        num_workers=args.workers, pin_memory=True, sampler=train_sampler)",
                        "        num_workers=args.workers, pin_memory=False, sampler=train_sampler, drop_last=True)",
                    ),
                    (
                        "        val_dataset, batch_size=args.batch_size, shuffle=False,\n"
                        "        num_workers=args.workers, pin_memory=True, sampler=val_sampler)",
                        "        val_dataset, batch_size=args.batch_size, shuffle=True,\n"
                        "        num_workers=args.workers, pin_memory=False, drop_last=True)",
                    ),
                ),
            ),
            (
                "model, loss, optimizer, amp, DDP and resume in",
                "main_worker(), after the loaders",
                (("    if args.evaluate:\n", f"{_REBUILT}    if args.evaluate:\n"),),
            ),
            ("saving with and without amp", "main_worker(), the epochs", ((_SAVE, _SAVES),)),
            (
                "training batches",
                "train()",
                (
                    (
                        "        # move data to the same device as model\n"
                        "        images = images.to(device, non_blocking=True)\n"
                        "        target = target.to(device, non_blocking=True)\n",
                        _indented(_TO_CARD, 8),
                    ),
                ),
            ),
            (
                "backward",
                "train()",
                (
                    (
                        "        loss.backward()\n",
                        "        if args.amp:\n            with amp.scale_loss(loss, optimizer) as scaled_loss:\n"
                        "                scaled_loss.backward()\n        else:\n            loss.backward()\n",
                    ),
                ),
            ),
            ("validation batches", "validate()", ((_BATCH, _indented(_TO_CARD, 16)),)),
            ("launch", "the shell", ()),
        ),
        start=1,
    )
)

OURS = {
    "meters on the card": ((_METER, '        device = torch.device("npu")\n'),),
    "one option for the backend": (
        (_BACKEND, ""),
        ('"--dist-backend", default="nccl"', '"--dist-backend", "--dist_backend", default="hccl"'),
    ),
    "-1 is dynamic": (
        ("loss_scale=args.loss_scale)", 'loss_scale="dynamic" if args.loss_scale == -1 else args.loss_scale)'),
    ),
}


def script(steps=None, leave_out=(), ours=(), text=_TEXT):
    """`text` after these steps of the guide (default: all), but for those left out, and with parts of OURS."""
    for step in GUIDE:
        if (steps is None or step.number in steps) and step.number not in leave_out:
            text = step.apply(text)
    for name in ours:
        text = GuideStep(0, name, "", OURS[name]).apply(text)
    return text
