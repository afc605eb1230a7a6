"""The migrated ImageNet script with one thing left out or done wrong, and what has to be told about it.

Each mutant undoes something of one step of the migration. "guide" marks what the guide's own listing
gets wrong, or leads a reader who follows it by hand into.
"""

import ast
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One faulty variant.

    Attributes:
        step: number of the step that it undoes.
        name: what is wrong.
        edits: (regular expression, replacement) pairs; each has to change something.
        told: regular expression that one of the problems found has to match.
        scenario: how it has to be run to show.
    """

    step: int
    name: str
    edits: tuple
    told: str
    scenario: str = "train"

    def apply(self, source):
        """`source` with the fault; AssertionError where an edit finds nothing, SyntaxError if it breaks the script."""
        for pattern, replacement in self.edits:
            changed = re.sub(pattern, replacement, source, flags=re.MULTILINE)
            assert changed != source, f"mutant {self.step} {self.name}: nothing matches {pattern!r}"
            source = changed
        ast.parse(source)
        return source


def of_cuda(tree):
    """What of a script only CUDA understands; `args.cuda` is the script's own."""
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Constant)) else ""
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "is_cuda", "cudnn"):
            if ast.unparse(node.value) not in ("args", "opt"):
                yield text
        elif re.fullmatch(r"'(cuda(:.*)?|nccl)'", text):
            yield text


def dropped(pattern):
    """An edit that takes out the line, or lines, that match."""
    return rf"^ *{pattern}.*\n", ""


NCCL = "error: .*(?i:nccl)"
MODEL = dropped(r"model = model\.to\(loc\)")
INITIALIZE = r"^    if args\.amp:\n(?:        #.*\n)?        model, optimizer = amp\.initialize\((?:.|\n)*?\n(?=    \S)"
DDP = r"^    if args\.distributed:\n        model = nn\.parallel\.DistributedDataParallel\(.*\n"
SCALED = r"^        if args\.amp:\n            with amp\.scale_loss(?:.|\n)*?else:\n    (?=        loss\.backward)"
COUNT = r"ngpus_per_node = len\(.*"

MUTANTS = (
    Mutant(1, "no apex", (dropped("from apex import amp"),), "error: NameError: .*amp"),
    Mutant(2, "nccl stays the default", (('default="hccl"', 'default="nccl"'),), NCCL),
    Mutant(
        2,
        "two options for the backend (guide)",
        (
            (r'"--dist-backend", "--dist_backend", default="hccl"', '"--dist-backend", default="nccl"'),
            (r"^best_acc1 = 0\n", 'parser.add_argument("--dist_backend", default="hccl")\nbest_acc1 = 0\n'),
        ),
        NCCL,  # of two defaults the first one wins
    ),
    Mutant(2, "no list of cards", (dropped(r'parser\.add_argument\("--device-list"(?:.|\n)*?\)"\)'),), "SystemExit"),
    Mutant(3, "cards in the order given", ((r"sorted\((?=int)", "list("),), "card: used"),
    Mutant(3, "a card twice", ((r"if len\(set\(.*", "if False:"),), "refusal: ", "card twice"),
    Mutant(3, "a card that is not there", ((r"if missing.*", "if False:"),), "refusal: ", "no such card"),
    Mutant(4, "no address", (dropped(".*MASTER_ADDR"),), "error: .*MASTER_ADDR"),
    Mutant(4, "no port", (dropped(".*MASTER_PORT"),), "error: .*MASTER_PORT"),
    Mutant(4, "a port of its own", ((r"args\.port\)", "int(args.port) - 1)"),), "rendezvous: "),
    Mutant(5, "CUDA's cards counted", ((COUNT, "ngpus_per_node = torch.cuda.device_count()"),), "processes: 0"),
    Mutant(5, "all cards counted", ((COUNT, "ngpus_per_node = torch.npu.device_count()"),), "error: KeyError"),
    Mutant(6, "process number as card", ((r"= process_device_map\[gpu\]", "= gpu"),), "card: used .*0"),
    Mutant(7, "nccl", ((r"backend=args\.dist_backend", 'backend="nccl"'),), NCCL),
    Mutant(7, "gloo", ((r"backend=args\.dist_backend", 'backend="gloo"'),), "error: .*No backend .* npu"),
    Mutant(8, "no set_device", (dropped(r"torch\.npu\.set_device\("),), r"set_device: \[\]"),
    Mutant(8, "set_device of the process number", ((r"set_device\(loc\)", "set_device(gpu)"),), r"set_device: \[0\]"),
    Mutant(8, "the whole batch for each", (dropped(r"args\.batch_size = int\("),), "shares: "),
    Mutant(8, "all workers for each", (dropped(r"args\.workers = int\("),), "shares: "),
    Mutant(11, "model not moved", (MODEL,), "error: "),
    Mutant(11, "model on CUDA", ((r"model\.to\(loc\)", "model.cuda(args.gpu)"),), "error: .*cuda"),
    Mutant(11, "DataParallel", ((r"model\.to\(loc\)", "nn.DataParallel(model).to(loc)"),), "error: .*DataParallel"),
    Mutant(
        11,
        "optimizer before the model is moved",
        (MODEL, (r"(^    optimizer = torch\.optim\.SGD\(.*\n)", r"\1    model = model.to(loc)\n")),
        "parameters: .*cpu",
        "one card",
    ),
    Mutant(11, "no amp.initialize", ((INITIALIZE, ""),), "error: .*amp.initialize"),
    Mutant(11, "no DDP", ((DDP, ""),), "hccl: "),
    Mutant(
        11,
        "DDP before amp.initialize",
        ((DDP, ""), (f"(?={INITIALIZE})", "    model = nn.parallel.DistributedDataParallel(model)\n")),
        "error: .*DistributedDataParallel",
    ),
    Mutant(11, "loss scale -1 (guide)", ((r'"dynamic" if .* == -1 else ', ""),), "scale: .*-1", "dynamic"),
    Mutant(11, "onto CUDA", (("map_location=loc", 'map_location=f"cuda:{args.gpu}"'),), "error: .*CUDA", "resume"),
    Mutant(11, "onto the card that wrote it", ((", map_location=loc", ""),), "error: .*npu:3 and npu:1", "resume"),
    Mutant(12, "loss scale not saved", ((r',\s*"amp": .* else None', ""),), "checkpoint: "),
    Mutant(11, "loss scale not restored", ((r"amp\.load_state_dict\(.*", "pass"),), "amp: ", "resume"),
    Mutant(11, "momentum not restored", (dropped(r"optimizer\.load_state_dict"),), "weights: ", "resume"),
    Mutant(10, "pinned memory", ((r"pin_memory=False", "pin_memory=True"),), "pinned: "),
    Mutant(10, "a smaller last batch", ((r",\s*drop_last=True", ""),), "kernels: "),
    Mutant(
        10,
        "last validation images dropped (guide)",
        ((r"(?=val_dataset, batch_size)", "drop_last=True, dataset="),),
        "validated: ",
    ),
    Mutant(9, "no schedule (guide)", (dropped(r"adjust_learning_rate\(optimizer, "),), "schedule: ", "schedule"),
    Mutant(9, "a schedule of steps", ((r"epoch // 30", "epoch // 3"),), "schedule: ", "schedule"),
    Mutant(13, "images not moved", (dropped(r"images = images\.to\("),), "error: .*same", "one card"),  # DDP moves them
    Mutant(
        15,
        "validation images not moved",
        ((r"(def validate(?:.|\n)*?)images = images\.to\(\S+\)", r"\1pass"),),
        "error: .*same",
        "one card",  # DDP moves them
    ),
    Mutant(13, "labels not moved", (dropped(r"target = target\.to\("),), "error: .*same device"),
    Mutant(13, "int64 labels", ((r"\.to\(torch\.int32\)", ""),), "int32: 0"),
    Mutant(
        17,
        "validation summed up on the CPU (guide)",
        ((r"(?=^    return top1\.avg)", "    dist.all_reduce(torch.tensor([top1.sum, top1.count]))\n"),),
        "error: .*No backend .* cpu",
    ),
    Mutant(14, "loss not scaled", ((SCALED, ""),), "error: .*amp.scale_loss"),
    Mutant(14, "backward of the unscaled loss", ((r"scaled_loss\.backward", "loss.backward"),), "weights: "),
)
