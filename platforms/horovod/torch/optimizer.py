"""`DistributedOptimizer`: any torch optimizer, with gradients averaged over the ranks before each step.

Names, errors and warnings as in the API reference of horovod.torch.
"""

import collections
import warnings
from contextlib import contextmanager

import torch

from ..core import Adasum, Average, global_process_set, size
from ..signature import SET, signed
from .compression import Compression
from .mpi_ops import FORMS, synchronize
from .reducer import Reducer

MANUAL = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
    "if you use optimizer.synchronize() in your code."
)
IN_FLIGHT = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)


@signed(
    f"optimizer, named_parameters=None, compression=none, backward_passes_per_step=1, op=Average, "
    f"gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, {SET}",
    none=Compression.none,
)
def DistributedOptimizer(
    optimizer, named_parameters, backward_passes_per_step, op, gradient_predivide_factor, num_groups, groups, **others
):
    """`optimizer` as an instance of a subclass of its own class, whose `step()` works on reduced gradients.

    Gradients are reduced while backward runs. The result shares options and state with `optimizer`, so learning-rate
    schedulers and checkpoints see no difference. To change gradients between reduction and step (clipping,
    `GradScaler.unscale_`), call `optimizer.synchronize()` first, and `step()` inside `optimizer.skip_synchronize()`.

    Args:
        named_parameters: pairs (name, parameter), unique and alike on all ranks. None numbers the parameters.
        compression: `Compression.none`, `.fp16`, `.bf16` or another compressor.
        backward_passes_per_step: backward passes whose gradients are added up before they are sent. They are not
            divided by it: divide the loss where you want a mean.
        op: `Average`, `Sum`, or `Adasum`, which combines the steps of the ranks instead of their gradients.
        gradient_predivide_factor: divide by it before the sum, and by size / factor after it; with `Average` only.
        num_groups, groups: gradients that travel together: a number of groups, or lists of parameters.
        sparse_as_dense: send sparse gradients as dense ones.
        process_set: the ranks that reduce with each other; any other rank steps on its own gradients.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor is {gradient_predivide_factor}; it has to be positive")
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`; give groups=…", DeprecationWarning, 2)
        groups = num_groups if groups is None else groups
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already; wrap the plain one, and once")
    named = _named_pairs(optimizer, named_parameters)
    _check_passes(backward_passes_per_step)
    kind, process_set = type(optimizer), others["process_set"]
    adasum = op == Adasum and size() > 1
    if adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    mixin = _DistributedAdasumOptimizer if adasum else _DistributedOptimizer
    made = object.__new__(type(kind.__name__, (mixin, kind), {"__module__": kind.__module__}))
    # A scheduler that saw the plain optimizer first has put its own `step` into it, which would go past ours.
    made.__dict__.update((name, value) for name, value in vars(optimizer).items() if name != "step")
    made.backward_passes_per_step, made.op, made.process_set = backward_passes_per_step, op, process_set
    made._compression, made._parameter_names = others["compression"], {p: name for name, p in named}
    made._reducer, groups = None, _checked_groups(groups)
    if size() > 1 and process_set.included():
        for group in made.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:  # as with Horovod: scripts read `p.grad` before the first backward pass
                    parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        if not adasum:
            options = dict(passes=backward_passes_per_step, op=op, predivide=gradient_predivide_factor, groups=groups)
            made._reducer = Reducer(made._all_named, **options, **others)
    return made


class _Distributed:
    """The mixin in front of an optimizer's class."""

    def _all_named(self):
        """Pairs (name, parameter) of all groups, also of those added since."""
        return [(self._parameter_names.get(parameter, name), parameter) for name, parameter in _numbered(self)]

    def set_backward_passes_per_step(self, passes):
        """Change the number of backward passes between steps; call it between a step and the next backward."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.passes = passes
            self._reducer.forget()


class _DistributedOptimizer(_Distributed):
    """Reduces gradients; `_reducer` is None where there is nobody to reduce with."""

    _should_synchronize, _synchronized, _for_scaler = True, False, False

    def synchronize(self):
        """Wait until all gradients are reduced; those of parameters without one count as zeros."""
        if self._reducer is not None:
            self._reducer.adopt()
            self._reducer.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self):
        """`step()` inside it takes the gradients as they are, after a `synchronize()` by hand."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure=None, **kwargs):
        """Reduce the gradients (those that `closure` computes, if there is one) and step."""
        if self._should_synchronize:
            if self._synchronized and not self._for_scaler:
                warnings.warn(MANUAL, stacklevel=2)
            if closure is None:
                self._synchronize_once()
            else:
                closure = self._synchronizing(closure)
        try:
            return super().step(closure, **kwargs) if closure is not None else super().step(**kwargs)
        finally:
            self._synchronized = self._for_scaler = False

    step.hooked = True  # torch wraps every unmarked step; super().step is wrapped already, so hooks would run twice

    @property
    def _step_supports_amp_scaling(self):
        # GradScaler.step() reads this before it looks at the gradients, and nobody else does. It is the last moment at
        # which they can be reduced before they are unscaled, if the user has not called synchronize().
        if self._should_synchronize and self._reducer is not None and self._reducer.started:
            self.synchronize()
            self._for_scaler = True
        return vars(self).get("_step_supports_amp_scaling", False)  # the wrapped optimizer's own answer

    def _synchronize_once(self):
        if not self._synchronized or (self._reducer is not None and self._reducer.started):
            self.synchronize()

    def _synchronizing(self, closure):
        def closed():
            loss = closure()
            self._synchronize_once()
            self._synchronized = False  # LBFGS asks for gradients several times in a step
            return loss

        return closed

    def zero_grad(self, *args, **kwargs):
        """As the optimizer's own; AssertionError while gradients are on their way."""
        if self._reducer is not None and self._reducer.started:
            raise AssertionError(IN_FLIGHT)
        return super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        """As the optimizer's own; gradients on their way are forgotten."""
        if self._reducer is not None:
            self._reducer.forget()
        self._synchronized, self._should_synchronize = False, True
        return super().load_state_dict(*args, **kwargs)


class _DistributedAdasumOptimizer(_Distributed):
    """Every rank steps on its own gradients; Adasum combines how far they came (arXiv:2006.02924, section 4)."""

    def synchronize(self):
        """Nothing to wait for: gradients stay where they are."""

    def skip_synchronize(self):
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure=None):
        """Step locally, then replace every parameter's step by the Adasum of all ranks' steps."""
        named = [(name, parameter) for name, parameter in self._all_named() if parameter.requires_grad]
        starts = [parameter.detach().clone() for _, parameter in named]
        loss = super().step(closure) if closure is not None else super().step()
        handles = []
        for (name, parameter), start in zip(named, starts):
            sent, context = self._compression.compress(parameter.detach() - start)
            handles.append((FORMS["allreduce_async_"](sent, name=name, op=Adasum), context))
        for (handle, context), (_, parameter), start in zip(handles, named, starts):
            delta = self._compression.decompress(synchronize(handle), context)
            parameter.detach().copy_(start + delta)
        return loss

    step.hooked = True  # as above


# -- the arguments of DistributedOptimizer --------------------------------------------------------


def _named_pairs(optimizer, named_parameters):
    """Pairs (name, parameter) of all parameters of the optimizer; ValueError as `DistributedOptimizer` says."""
    named = _numbered(optimizer) if named_parameters is None else list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in named]
    twice = sorted({str(name) for name, count in collections.Counter(names).items() if count > 1})
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}. "
            "Put a prefix before the names of each model"
        )
    known = {id(parameter) for _, parameter in named}
    unnamed = [name for name, parameter in _numbered(optimizer) if id(parameter) not in known]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: "
            f"{len(unnamed)} of the optimizer's (as {', '.join(unnamed[:5])}: group and place)"
        )
    return named


def _numbered(optimizer):
    """Pairs (name, parameter) with names made of the numbers of group and place."""
    return [
        (f"allreduce.noname.{i}.{j}", parameter)
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
    ]


def _checked_groups(groups):
    """`groups`, or None where there is none; ValueError when it is neither a number nor lists of tensors."""
    if groups is None:
        return None
    if not isinstance(groups, (list, tuple)):
        if not isinstance(groups, int) or groups < 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        return groups or None
    members = [parameter for group in groups for parameter in group]
    if not all(isinstance(parameter, torch.Tensor) for parameter in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(parameter) for parameter in members}) < len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return groups


def _check_passes(passes):
    """ValueError unless `passes` can be a number of backward passes."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes!r}; give a positive integer")
