"""The chosen plan at work: batches of other shapes, and a compiler that fails late."""

import torch
from torch.utils import _pytree as pytree

from .plan import Plan


class Settled:
    """Computes a model's forward by one plan.

    A compiled plan is for the shapes that it was compiled for. Another shape, such as that of a last
    smaller batch, would cost a compilation that its few steps seldom win back: such batches are
    computed without the compiler, unless `recompiles` of them may be compiled too. Sizes marked by
    torch._dynamo.mark_dynamic may change freely.

    Attributes:
        recompiled: shapes that were compiled besides the first.
        other_shapes: steps that ran without the compiler because of their shape.
        failure: why the plan was given up, or "".
    """

    def __init__(self, plan, forward, signature, draws, recompiles, say, call=None):
        self.plan, self.forward, self.known = plan, forward, [signature]
        self.draws, self.recompiles, self.say = draws, recompiles, say
        self.calls = {plan: call} if call else {}
        self.recompiled, self.other_shapes, self.failure = 0, 0, ""

    def __call__(self, *args, **kwargs):
        plan = self.plan
        if plan.compiled and not self._is_compiled_for(signature_of(args, kwargs)):
            plan = plan.without_compiler()
        try:
            return self._call(plan)(*args, **kwargs)
        except Exception as error:
            if not plan.compiled:
                raise
            outputs = self.forward(*args, **kwargs)  # raises if it was the model's own error
            self.plan = Plan()
            said = " ".join(str(error).split())[:160]
            self.failure = f"{plan} failed later, eager since: {type(error).__name__}: {said}"
            self.say(f"optimize: {self.failure}")
            return outputs

    def _call(self, plan):
        if plan not in self.calls:
            self.calls[plan] = plan.make(self.forward, self.draws, has_dynamic(self.known[0]))
        return self.calls[plan]

    def _is_compiled_for(self, signature):
        if signature in self.known:
            return True
        if self.recompiled < self.recompiles:
            self.recompiled += 1
            self.known.append(signature)
            self.say(f"optimize: compiling {self.plan} for another shape ({self.recompiled} of {self.recompiles}) …")
            return True
        if not self.other_shapes:
            self.say(
                "optimize: a batch of another shape runs without the compiler, as compiling again takes longer than a "
                "few steps can win back; drop or pad the last batch, or allow recompiles=1"
            )
        self.other_shapes += 1
        return False

    def __getstate__(self):
        return {**self.__dict__, "calls": {}, "say": _nothing}  # what a compiler made cannot travel


def signature_of(args, kwargs) -> tuple:
    """What compiled code is specific to: shapes (None where marked dynamic), types, devices, other values."""
    return tuple(
        (tuple(None if d in getattr(v, "_dynamo_dynamic_indices", ()) else s for d, s in enumerate(v.shape)),
         str(v.dtype), str(v.device), v.requires_grad)
        if torch.is_tensor(v) else repr(v) if isinstance(v, (bool, int, float, str, type(None))) else type(v).__name__
        for v in pytree.tree_leaves((args, kwargs))
    )  # fmt: skip


def has_dynamic(signature) -> bool:
    """Whether a size in it is marked dynamic."""
    return any(None in leaf[0] for leaf in signature if isinstance(leaf, tuple))


def _nothing(text):
    pass
