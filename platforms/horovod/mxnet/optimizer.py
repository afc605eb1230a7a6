"""Gradients averaged before the update: in an optimizer (for Module) and in a trainer (for gluon)."""

import warnings

import mxnet as mx
import numpy as np

from .. import arrays
from ..compression import choices
from ..core import Sum
from ..core import global_process_set as WORLD
from .mpi_ops import like, to_numpy

# Half the bytes of floating-point gradients; sums above 65,504 become infinite.
Compression = choices(
    lambda tensor: "float" in str(tensor.dtype), lambda tensor, dtype: tensor.astype(dtype, copy=False), fp16="float16"
)


class TwoBit:
    """MXNet's own compression of a key-value store: of each number only whether it is above or below a threshold.

    What is left out is kept and added to the next gradient (https://mxnet.apache.org/versions/1.9.1/api/faq/
    gradient_compression). Four numbers travel in a byte.
    """

    def __init__(self, threshold):
        self.threshold, self.left = np.float32(threshold), {}

    def pack(self, name, values):
        """The bytes for an array of float32."""
        values = values + self.left.get(name, np.float32(0))
        codes = (values >= self.threshold).astype(np.uint8) + 2 * (values <= -self.threshold).astype(np.uint8)
        self.left[name] = values - self._meaning(codes)
        four = np.resize(np.append(codes.ravel(), np.zeros(-codes.size % 4, np.uint8)), (-(-codes.size // 4), 4))
        return (four << np.arange(0, 8, 2, dtype=np.uint8)).sum(1, dtype=np.uint8)

    def unpack(self, packed, shape):
        """The array that `pack` made bytes of, but for what it left out."""
        codes = (packed[:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
        return self._meaning(codes.ravel()[: int(np.prod(shape))].reshape(shape))

    def _meaning(self, codes):
        return np.array([0, self.threshold, -self.threshold], np.float32)[codes]

    def sums(self, names, gradients, process_set):
        """The sums over the ranks of what they send, in new arrays; TypeError for a dtype other than float32."""
        for gradient in gradients:
            if gradient.dtype != np.float32:
                raise TypeError(f"2bit compression is for float32, not {np.dtype(gradient.dtype).name}")
        packed = [self.pack(name, to_numpy(gradient)) for name, gradient in zip(names, gradients)]
        everybodys = arrays.FORMS["grouped_allgather"](packed, names[0], process_set)
        parts = [of.reshape(process_set.size(), -1) for of in everybodys]
        return [like(own, sum(self.unpack(part, own.shape) for part in of)) for own, of in zip(gradients, parts)]


class Reducer:
    """Sums of gradients; the division by the number of ranks is left to the optimizer's rescale_grad.

    `scale` is the factor for rescale_grad: gradients are divided by predivide before the sum, and multiplied by
    predivide / size after it. A rank outside the process set keeps its gradients.
    """

    def __init__(self, predivide, process_set, compression=Compression.none):
        self.process_set, self.compression = process_set, compression
        self.options = dict(op=Sum, prescale_factor=1.0 / predivide, process_set=process_set)
        self.scale = predivide / process_set.size() if process_set.included() else 1.0

    def sum_(self, names, gradients):
        """Replace gradients by their sums over the ranks."""
        if self.process_set.included():
            for gradient, total in zip(gradients, self.sums(names, gradients)):
                total.copyto(gradient)

    def sums(self, names, gradients):
        """The sums over the ranks, in new arrays."""
        if isinstance(self.compression, TwoBit):
            return self.compression.sums(names, gradients, self.process_set)
        packed = [self.compression.compress(gradient) for gradient in gradients]
        # All values are read first: backward, with the collectives of its layers, has ended then.
        values = [to_numpy(tensor) for tensor, _ in packed]
        totals = arrays.FORMS["grouped_allreduce"](values, names[0], **self.options)
        return [self.compression.decompress(like(own, total), ctx) for total, (own, ctx) in zip(totals, packed)]


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that averages gradients over the ranks before each update, for `mx.mod.Module`.

    Everything else is that of the optimizer in it. Give Module `kvstore=None` beside it, and set the batch size's
    share of rescale_grad for one rank's batch. `gradient_predivide_factor`: see Reducer. `num_groups` has no effect:
    gradients that come together are reduced as one operation.
    """

    def __init__(self, optimizer, gradient_predivide_factor=1.0, num_groups=0, process_set=WORLD):
        reducer = Reducer(gradient_predivide_factor, process_set)
        optimizer.rescale_grad *= reducer.scale
        vars(self).update(_optimizer=optimizer, _reducer=reducer)

    def __getattr__(self, name):
        if name in ("_optimizer", "_reducer"):  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name, value):
        setattr(self._optimizer, name, value)

    def create_state(self, index, weight):
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index, weight):
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index, weight, grad, state, how="update"):
        several = isinstance(index, (tuple, list))
        self._reducer.sum_([str(i) for i in index] if several else [str(index)], grad if several else [grad])
        getattr(self._optimizer, how)(index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        self.update(index, weight, grad, state, "update_multi_precision")


class DistributedTrainer(mx.gluon.Trainer):
    """gluon's Trainer with gradients averaged over the ranks: `step(batch_size)` takes one rank's batch size.

    It does not make the parameters equal: call `broadcast_parameters` before.

    Args:
        compression: what the gradients travel as: Compression.none or Compression.fp16.
        gradient_predivide_factor, num_groups, process_set: as for DistributedOptimizer.
        prefix: comes before the tensors' names, which have to differ between two trainers at work at once.
    """

    def __init__(
        self,
        params,
        optimizer,
        optimizer_params=None,
        compression=Compression.none,
        gradient_predivide_factor=1.0,
        prefix=None,
        num_groups=0,
        process_set=WORLD,
    ):
        if isinstance(optimizer, DistributedOptimizer):
            text = (
                "DistributedTrainer averages gradients itself: it takes the optimizer out of its DistributedOptimizer"
            )
            warnings.warn(text, stacklevel=2)
            optimizer.rescale_grad /= optimizer._reducer.scale
            optimizer = optimizer._optimizer
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if len(self._contexts) > 1:
            raise ValueError(
                f"the parameters are on {len(self._contexts)} devices ({', '.join(map(str, self._contexts))}) of one "
                "process; start one process for each device and initialize on one of them, such as mx.gpu(local_rank())"
            )
        self._reducer = Reducer(gradient_predivide_factor, process_set, compression)
        self._scale *= self._reducer.scale
        self._prefix = prefix or ""

    def _allreduce_grads(self):
        trained = [(i, param) for i, param in enumerate(self._params) if param.grad_req != "null"]
        self._reducer.sum_([f"{self._prefix}{i}" for i, _ in trained], [param.list_grad()[0] for _, param in trained])
