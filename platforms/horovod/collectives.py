"""Moves data: the collectives on torch tensors, in process groups of torch.distributed that no script sees.

CPU tensors go through gloo, CUDA tensors through NCCL; tensors on other devices are copied to the CPU and back.
"""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._utils import _unflatten_dense_tensors

from .core.requests import ANY_ROWS

SMALL = 2**22  # bytes; larger tensors are sent alone, because copying them to a shared buffer costs more than a message
CACHED = 2**18  # elements; a second pass over so few costs less than a call for each tensor
PLANS = 256  # batches whose layout in the buffer is remembered
WIDER = {torch.int16: torch.int32}  # dtypes gloo cannot add -> wider ones, with the same result modulo 2^n
for _name, _wide in (("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64")):
    if hasattr(torch, _name):
        WIDER[getattr(torch, _name)] = getattr(torch, _wide)
OPS = {"Average": "SUM", "Sum": "SUM", "Min": "MIN", "Max": "MAX", "Product": "PRODUCT"}


def timeout():
    """How long a collective may take: HOROVOD_GLOO_TIMEOUT_SECONDS, or 30 minutes, as the watch notices lost ranks."""
    return timedelta(seconds=float(os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", 1800)))


class Mover:
    """The process groups of one lane, and what runs in them. Its methods are called from the lane's thread."""

    def __init__(self, rank, ranks, store, address):
        self.ranks, self.me, self.count = list(ranks), list(ranks).index(rank), len(ranks)
        self._store, self._address, self._groups, self._streams, self._room = store, address, {}, {}, Room()
        self._cpu = self._group("cpu")

    def _group(self, device):
        if device not in self._groups:
            store = dist.PrefixStore(device, self._store)
            if device == "cuda":
                self._groups[device] = dist.ProcessGroupNCCL(store, self.me, self.count, timeout())
            else:
                options = dist.ProcessGroupGloo._Options()
                options._timeout = timeout()
                options._devices = [_gloo_device(self._address)]
                self._groups[device] = dist.ProcessGroupGloo(store, self.me, self.count, options)
        return self._groups[device]

    # What the ranks tell each other before they move data

    def digests(self, count, digests, most):
        """Every rank's [count, digests…], filled up with zeros to `most` digests."""
        mine = torch.zeros(1 + most, dtype=torch.int64)
        mine[: 1 + len(digests)] = torch.tensor([count, *digests], dtype=torch.int64)
        return self._all_of(mine).tolist()

    def gather_json(self, value):
        """Every rank's value, in order."""
        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self._all_of(torch.tensor([len(data)])).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(data)] = data
        return [json.loads(bytes(row[:n].tolist())) for row, n in zip(self._all_of(padded), lengths)]

    def rows(self, entries):
        """{request's name: every rank's rows of each tensor (allgather), or splits (alltoall)} of what has any."""
        asked = [entry.request for entry in entries if entry.request["kind"] in ANY_ROWS]
        mine = [request.get("splits") or [shape[0] for _, shape, _ in request["tensors"]] for request in asked]
        if not mine:
            return {}
        everybodys = self._all_of(torch.tensor(sum(mine, []), dtype=torch.int64)).split(list(map(len, mine)), dim=1)
        return {request["name"]: numbers.tolist() for request, numbers in zip(asked, everybodys)}

    def _all_of(self, tensor):
        """[ranks, …] of every rank's tensor of one shape."""
        if self.count == 1:
            return tensor[None]
        there = [torch.empty_like(tensor) for _ in self.ranks]
        self._cpu.allgather([there], [tensor], _options(c10d.AllgatherOptions)).wait()
        return torch.stack(there)

    # Moving data

    def run(self, specs, entries, rows=None):
        """A result for each entry (None where this rank has joined) of one collective, or of several that are fused."""
        kind, devices = specs[0]["kind"], {tensor[2] for tensor in specs[0]["tensors"]}
        device = "cuda" if devices == {"cuda"} and nccl_version() else "cpu"
        layout = None if None in entries else tuple(entry.digest for entry in entries)
        call = Call(self._group(device), self.ranks, self.me, (rows or {}).get(specs[0]["name"]), self._room, layout)
        if device == "cuda":
            return self._on_stream(call, kind, specs, entries)
        return getattr(call, kind)(specs, entries)

    def _on_stream(self, call, kind, specs, entries):
        """Run on a stream of its own, after the computing stream has written the tensors."""
        here = next((tensor.device for entry in entries if entry for tensor in entry.inputs), None)
        here = torch.device("cuda", torch.cuda.current_device()) if here is None else here
        stream = self._streams.setdefault(here, torch.cuda.Stream(here))
        with torch.cuda.device(here), torch.cuda.stream(stream):
            for entry in entries:
                if entry is not None and entry.ready is not None:
                    stream.wait_event(entry.ready)
            results = getattr(call, kind)(specs, entries)
        stream.synchronize()
        return results


def _gloo_device(address):
    """The network interface of this host's address, unless GLOO_SOCKET_IFNAME names another."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if name:
        return dist.ProcessGroupGloo.create_device(interface=name)
    return dist.ProcessGroupGloo.create_device(hostname=address)


def nccl_version():
    """NCCL's version as one number, 0 without it."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        return 0
    version = torch.cuda.nccl.version()
    return version if isinstance(version, int) else sum(part * 100**i for i, part in enumerate(reversed(version[:3])))


class Call:
    """One collective in one group; a method a kind. `rows`: every rank's rows or splits; `layout`: a key for `Room`."""

    def __init__(self, group, ranks, me, rows, room, layout):
        self.group, self.ranks, self.me, self.count = group, ranks, me, len(ranks)
        self.rows, self.room, self.layout = rows, room, layout

    def allreduce(self, specs, entries):
        outputs = [
            entry.inputs if entry is not None and entry.outputs is entry.inputs else self._outputs(spec, entry)
            for spec, entry in zip(specs, entries)
        ]
        self._reduce([tensor for each in outputs for tensor in each], specs[0]["op"], specs[0]["scales"])
        return outputs

    def _outputs(self, spec, entry):
        """Tensors with this rank's values, to be reduced in place."""
        if entry is None:
            cuda = {"device": "cuda"} if torch.cuda.is_available() else {}
            return [
                torch.zeros(shape, dtype=getattr(torch, name), **(cuda if device == "cuda" else {}))
                for name, shape, device in spec["tensors"]
            ]
        outputs = entry.outputs or [_like(each) for each in entry.inputs]
        for output, given in zip(outputs, entry.inputs):
            if output is not given:
                output.data.copy_(given.data)
        return outputs

    def _reduce(self, tensors, op, scales):
        """Reduce tensors in place. All are started before the first is waited for."""
        tensors = [tensor.data for tensor in tensors]  # a result does not count as a change of its tensor
        begun = [
            self._begin([tensors[place] for place in places], buffer, pieces, op, scales[0])
            for places, buffer, pieces in self.room.lay(self.layout, tensors, op)
        ]
        for batch, buffer, pieces, way, work in begun:
            if work:
                work.wait()
            if way.data_ptr() != buffer.data_ptr():
                buffer.copy_(way)
            divisor = self.count if op == "Average" else 1
            if pieces and buffer.numel() > CACHED and scales[1] == 1 and _divides(buffer):
                for tensor, piece in zip(batch, pieces):
                    torch.div(piece, divisor, out=tensor)  # one pass over memory instead of two
            else:
                _scale(buffer, scales[1], divisor)
                _copy(batch, pieces)

    def _begin(self, batch, buffer, pieces, op, prescale):
        """Start one batch: (tensors, the buffer that holds them, its pieces, the tensor that is sent, its work)."""
        if len(batch) == 1 and batch[0].is_contiguous() and batch[0].device.type in ("cpu", "cuda"):
            buffer, pieces = batch[0], ()
        elif buffer is None:
            buffer, pieces = self.room.part(batch)
        _copy(pieces, batch)
        _scale(buffer, prescale)
        if op == "Adasum":
            return batch, buffer, pieces, _adasum(self._all(buffer)), None
        options = _options(c10d.AllreduceOptions)
        name = OPS[op]
        if buffer.dtype is torch.bool:  # gloo would count: True and True is 2
            name = {"SUM": "MAX", "PRODUCT": "MIN"}.get(name, name)
        options.reduceOp = getattr(dist.ReduceOp, name)
        way = buffer.view(torch.uint8) if buffer.dtype is torch.bool else buffer
        if way.is_complex() and name == "SUM":
            way = torch.view_as_real(way)  # the groups of older releases know no complex numbers
        way = _near(way.to(WIDER[way.dtype]) if way.dtype in WIDER else way)
        return batch, buffer, pieces, way, self.group.allreduce([way], options)

    def _all(self, tensor):
        """All ranks' tensors of the same shape, as a list."""
        there = [torch.empty_like(tensor) for _ in self.ranks]
        self.group.allgather(
            [[_bytes(each) for each in there]], [_bytes(tensor)], _options(c10d.AllgatherOptions)
        ).wait()
        return there

    def broadcast(self, specs, entries):
        entry = entries[0]
        outputs = entry.outputs or [_like(each) for each in entry.inputs]
        options = _options(c10d.BroadcastOptions)
        options.rootRank, options.rootTensor = self.ranks.index(specs[0]["root"]), 0
        for output, given in zip(outputs, entry.inputs):
            buffer = given.data.contiguous()
            if buffer.data_ptr() == given.data_ptr() and output is not given:
                buffer = output.data.copy_(given.data)
            if not buffer.numel():
                continue
            way = _near(buffer)
            self.group.broadcast([_bytes(way)], options).wait()
            if way.data_ptr() != output.data_ptr() or not output.is_contiguous():
                output.data.copy_(way)
        return [outputs]

    def allgather(self, specs, entries):
        results = []
        for index, tensor in enumerate(entries[0].inputs):
            rows = [theirs[index] for theirs in self.rows]
            tensor = tensor.data.contiguous()
            output = tensor.new_empty((sum(rows), *tensor.shape[1:]))
            self._exchange(tensor, [tensor.shape[0]] * self.count, output, rows, sum(rows), repeat=True)
            results.append(output)
        return [results]

    def alltoall(self, specs, entries):
        splits = self.rows
        tensor = entries[0].inputs[0].data[: sum(splits[self.me])].contiguous()
        received = [theirs[self.me] for theirs in splits]
        output = tensor.new_empty((sum(received), *tensor.shape[1:]))
        self._exchange(tensor, splits[self.me], output, received, sum(map(sum, splits)))
        return [(output, received)]

    def _exchange(self, tensor, sent, output, received, total, repeat=False):
        """Send `sent[i]` rows to the i-th rank (with `repeat` all rows to each), receive `received[i]` from it.

        All ranks have to enter the group's collective, or none: `total` is the number of rows of all of them.
        """
        row = tensor.element_size()
        for length in tensor.shape[1:]:
            row *= length
        if row * total == 0:
            return
        out, into = _bytes(_near(tensor)), _bytes(_near(output))
        if repeat and len(set(received)) == 1:
            self.group.allgather([list(into.chunk(self.count))], [out], _options(c10d.AllgatherOptions)).wait()
        else:
            out = out.repeat(self.count) if repeat else out
            sizes = [row * n for n in received], [row * n for n in sent]
            self.group.alltoall_base(into, out, *sizes, _options(c10d.AllToAllOptions)).wait()
        if into.data_ptr() != output.data_ptr():
            _bytes(output).copy_(into)

    def reducescatter(self, specs, entries):
        # All of it is reduced everywhere and each rank keeps its rows: gloo has no faster way with unequal parts.
        copies = [each.data.clone(memory_format=torch.contiguous_format) for each in entries[0].inputs]
        self._reduce(copies, specs[0]["op"], specs[0]["scales"])
        results = []
        for copy in copies:
            rows, more = divmod(copy.shape[0], self.count)
            begin = self.me * rows + min(self.me, more)
            results.append(copy[begin : begin + rows + (self.me < more)].clone())
        return [results]


class Room:
    """A buffer for fused tensors, reused by later collectives because fresh pages are slow."""

    def __init__(self):
        self._kept, self._used = torch.empty(0, dtype=torch.uint8), 0
        self._laid = {}  # key of a batch that every step repeats -> (its batches, bytes used)

    def lay(self, layout, tensors, op):
        """The tensors that are sent together: [(places among `tensors`, flat buffer, its pieces in their shapes)].

        A tensor alone has no buffer yet (None), as it seldom needs one. `layout`: None if it does not come again.
        """
        if layout is None or layout not in self._laid:
            self._used = 0
            batches = []
            for places in _batches(tensors, op):
                batch = [tensors[place] for place in places]
                batches.append((places, *(self.part(batch) if len(batch) > 1 else (None, ()))))
            if layout is None or not tensors or tensors[0].device != self._kept.device:
                return batches
            if len(self._laid) >= PLANS:
                self._laid.clear()
            self._laid[layout] = batches, self._used
        batches, self._used = self._laid[layout]
        return batches

    def part(self, tensors):
        """A flat buffer for tensors of one dtype and device, and its pieces in their shapes."""
        first = tensors[0]
        count = sum([each.numel() for each in tensors])
        if first.device == self._kept.device:
            buffer = self._kept_part(count * first.element_size()).view(first.dtype)
        else:
            buffer = first.new_empty(count)
        return buffer, _unflatten_dense_tensors(buffer, tensors)

    def _kept_part(self, size):
        if self._used + size > self._kept.numel():
            self._kept, self._used = torch.empty(max(2 * size, 2**20), dtype=torch.uint8), 0
            self._laid.clear()
        part = self._kept[self._used : self._used + size]
        self._used += -(-size // 64) * 64
        return part


def _copy(into, tensors):
    """Copy tensors into others of their shapes: one call, where torch has it."""
    if not into or not tensors:
        return
    if hasattr(torch, "_foreach_copy_") and into[0].device.type in ("cpu", "cuda"):
        torch._foreach_copy_(into, tensors)
    else:
        for one, other in zip(into, tensors):
            one.copy_(other)


def _batches(tensors, op):
    """Places of the tensors to send together: small ones by dtype, each large one alone."""
    together = {}
    for place, tensor in enumerate(tensors):
        if tensor.numel() == 0:
            continue
        alone = tensor.numel() * tensor.element_size() > SMALL or op == "Adasum"
        together.setdefault(place if alone else tensor.dtype, []).append(place)
    return together.values()


def _options(kind):
    options = kind()
    options.timeout = timeout()
    return options


def _like(tensor):
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _bytes(tensor):
    """A contiguous tensor's memory as bytes."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # dimensions of length 1 may have any stride


def _near(tensor):
    """The tensor, or a copy on the CPU if its device has no process group here."""
    return tensor if tensor.device.type in ("cpu", "cuda") else tensor.cpu()


def _divides(tensor):
    """Whether division keeps the tensor's dtype."""
    return tensor.is_floating_point() or tensor.is_complex()


def _scale(tensor, factor, divisor=1):
    """tensor *= factor / divisor: integers in float64 and truncated, as Horovod says, halves in float32.

    (torch 1.12 would round the factor to 16 bits.)
    """
    if _divides(tensor):
        if factor != 1 and tensor.dtype in (torch.float16, torch.bfloat16):
            tensor.copy_(tensor.float().mul_(factor))
        elif factor != 1:
            tensor.mul_(factor)
        if divisor != 1:
            tensor.div_(divisor)
    elif factor != 1:
        tensor.copy_((tensor.to(torch.float64) * (factor / divisor)).to(tensor.dtype))
    elif divisor != 1:
        tensor.copy_(torch.div(tensor, divisor, rounding_mode="trunc"))


def _adasum(tensors):
    """Adasum of 2^k tensors of one shape (Maleki et al., arXiv:2006.02924): pairwise in a tree, a and b become
    (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b. The scalar products are computed in float64.
    """
    while len(tensors) > 1:
        tensors = [_adasum_pair(a, b) for a, b in zip(tensors[::2], tensors[1::2])]
    return tensors[0]


def _adasum_pair(a, b):
    wide_a, wide_b = a.to(torch.float64), b.to(torch.float64)
    product, square_a, square_b = (wide_a * wide_b).sum(), (wide_a * wide_a).sum(), (wide_b * wide_b).sum()
    keep_a = 1 - product / (2 * square_a) if square_a > 0 else 1.0
    keep_b = 1 - product / (2 * square_b) if square_b > 0 else 1.0
    return (keep_a * wide_a + keep_b * wide_b).to(a.dtype)
