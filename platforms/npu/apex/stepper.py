"""One optimizer under amp: it steps on whole, finite, unscaled gradients, or not at all.

At O2 it updates float32 master weights in place of half ones. A weight in half cannot take an update 2000 times smaller
than itself; the master can (section 3.1 of arXiv:1710.03740). Checkpoints hold the masters, so that a resumed training
goes on where it was.
"""

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from .casting import HALF

MOVED = (
    "the model was moved to another device after amp.initialize, and the parameters of the optimizer stayed behind; "
    "move the model first, then make the optimizer, then call amp.initialize"
)
_MASTERS = WeakTensorKeyDictionary()  # half weight -> its Master


class Master:
    """The float32 `value` (a Parameter) of one half `weight`.

    Of weight and master the one written last counts: the optimizer and `load_state_dict` write the
    master; DDP, an initialisation or a clamp of the reader's write the weight, and not every such write
    can be heard of. So the two are compared, element by element, before each use.
    """

    def __init__(self, weight, exact=None):
        value = weight.detach().float() if exact is None else exact.clone()
        self.value = nn.Parameter(value, requires_grad=weight.requires_grad)
        self._version = self.value._version

    @torch.no_grad()
    def pull(self, weight):
        """Take over the elements of `weight` that are not those of the master rounded."""
        if self.value._version == self._version:
            same = weight == self.value.to(weight.dtype)
            self.value.copy_(torch.where(same, self.value, weight.float()))
            self._version = self.value._version

    @torch.no_grad()
    def push(self, weight):
        """Round the master into `weight`."""
        weight.copy_(self.value)
        self._version = self.value._version


def keep_in_checkpoints(model):
    """Let `state_dict` of `model` give float32, that of masters where there are any, and `load_state_dict` set them."""
    for module in model.modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(tensor.dtype in HALF for tensor in own):
            module.register_state_dict_post_hook(_save_exact)
            module.register_load_state_dict_pre_hook(_load_exact)


def _save_exact(module, state_dict, prefix, local_metadata):
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        saved = state_dict.get(prefix + name)
        if saved is None or saved is tensor or saved.dtype not in HALF:  # the tensor itself: keep_vars=True
            continue
        master = _MASTERS.get(tensor)
        if master is None:
            state_dict[prefix + name] = saved.float()
        else:
            master.pull(tensor)
            state_dict[prefix + name] = master.value.detach()


def _load_exact(module, state_dict, prefix, *_):
    for name, weight in module._parameters.items():
        master, value = _MASTERS.get(weight) if weight is not None else None, state_dict.get(prefix + name)
        if master is not None and torch.is_tensor(value) and value.shape == weight.shape:
            with torch.no_grad():
                master.value.copy_(value)
                master.push(weight)


class Stepper:
    """Watches over one optimizer.

    It works through the optimizer's own step hooks, so that learning-rate schedulers, made before or
    after, see the optimizer that they know. A step is skipped by hiding the gradients from it.

    `session` is the `initialize` it belongs to, `models` are those whose parameters it updates, `exact` what these were
    before they were cast ({id: tensor}), `skip` says whether the next step is left out.
    """

    def __init__(self, optimizer, session, models, exact):
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.optimizer, self.session = optimizer, session
        self.models = [model for model in models if _shares(model, own)]
        self.skip = False
        self._pairs = []  # (half weight, the Master that the optimizer updates in its place)
        self._scale = None  # what the gradients are multiplied by at this moment; None for nothing
        self._kept = {}  # parameter: its gradient from earlier passes, no longer scaled
        self._open = False  # between the two ends of a scale_loss
        self._fresh = False  # gradients have arrived since the last step
        self._hidden = []
        # Only of a checkpoint: new weights begin rounded, as DDP sends them to all ranks, and as apex rounds them.
        self._adopt(exact if optimizer.state else {})
        optimizer._amp_stepper = self
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        self._zero_grad, optimizer.zero_grad = optimizer.zero_grad, self.zero_grad
        self._add_param_group, optimizer.add_param_group = optimizer.add_param_group, self.add_param_group

    def _parameters(self):
        return (p for group in self.optimizer.param_groups for p in group["params"])

    def _plain(self):
        """Parameters that the model uses itself."""
        updated = {id(master.value) for _, master in self._pairs}
        return [p for p in self._parameters() if id(p) not in updated]

    def _halves(self):
        return [weight for weight, _ in self._pairs]

    def _adopt(self, exact):
        """Put masters in the place of half weights."""
        if not self.session.level.master_weights:
            return
        known, state = {id(weight) for weight, _ in self._pairs}, self.optimizer.state
        for group in self.optimizer.param_groups:
            for index, weight in enumerate(group["params"]):
                if weight.dtype not in HALF:
                    continue
                if id(weight) in known:
                    raise ValueError("some parameters appear in more than one parameter group")
                master = _MASTERS.setdefault(weight, Master(weight, exact.get(id(weight))))
                group["params"][index] = master.value
                if weight in state:
                    state[master.value] = state.pop(weight)
                self._pairs.append((weight, master))

    def _lost(self):
        """Whether the models have other parameters now than those that the optimizer updates."""
        own = {id(p) for p in (*self._plain(), *self._halves())}
        return bool(self.models) and not any(_shares(model, own) for model in self.models)

    def local(self):
        """Whether the gradients of the last forward stay on this rank (DDP's `no_sync`)."""
        return any(model._amp_casts.local for model in self.models)

    # -- around a backward ----------------------------------------------------------------

    def open(self, scale):
        """Before a backward whose loss is multiplied by `scale`."""
        if self._open:
            raise RuntimeError(
                "amp.scale_loss is open for this optimizer already; end the first context before the second begins, or "
                "scale the sum of the losses in one"
            )
        if self._scale not in (None, scale):
            raise RuntimeError(
                f"gradients scaled by {self._scale:g} are waiting (delay_unscale or DDP's no_sync) and this loss would "
                f"add some scaled by {scale:g}; end the accumulation with a pass without delay_unscale first, or use "
                "one loss_id for all of its passes"
            )
        if self._scale is None:
            self._kept = {p: p.grad for p in self._plain() if p.grad is not None}
            for p in (*self._kept, *self._halves()):
                p.grad = None
        self._open = True

    def abandon(self):
        """After a backward that failed: the gradients of before it, unless scaled ones were waiting."""
        self._open = False
        if self._scale is None:
            for p in (*self._plain(), *self._halves()):
                p.grad = self._kept.get(p)
            self._kept = {}

    def hold(self, scale):
        """After a backward whose gradients stay scaled for now."""
        self._scale, self._open = scale, False

    def close(self, scaler):
        """After a backward: unscale what it brought and add it to what was there."""
        self._open = False
        arrived = [(p, p.grad, self._kept.pop(p, None)) for p in self._plain() if p.grad is not None]
        for weight, master in self._pairs:
            if weight.grad is not None:
                if weight.device != master.value.device:
                    raise RuntimeError(MOVED)
                arrived.append((master.value, weight.grad.float(), master.value.grad))
        if not arrived and self._lost():
            raise RuntimeError(MOVED)
        scaler.unscale([new for _, new, _ in arrived])
        scaler.waiting.append(self)
        for p, new, earlier in arrived:
            p.grad = new if earlier is None else earlier + new
        for p, earlier in self._kept.items():  # this pass brought nothing
            p.grad = earlier
        self._kept, self._scale, self._fresh = {}, None, True

    # -- the optimizer's methods ----------------------------------------------------------

    def pull(self):
        """Let the masters take over what was written into the weights."""
        for weight, master in self._pairs:
            master.pull(weight)

    def _before_step(self, optimizer, args, kwargs):
        if len(args) > 1 and args[1] is not None or kwargs.get("closure") is not None:
            raise RuntimeError(
                "optimizer.step(closure) does not go with amp: a closure would run backward without the loss scale; "
                "call backward in `with amp.scale_loss(loss, optimizer)` first, then optimizer.step()"
            )
        self.session.settle(self)
        if self._scale is not None:
            raise RuntimeError(
                f"the gradients are still multiplied by {self._scale:g}: every pass since the last step had "
                "delay_unscale=True or ran in DDP's no_sync(); run the last one before optimizer.step() without"
            )
        if not self._fresh and any(weight.grad is not None for weight in self._halves()):
            raise RuntimeError(
                "backward() ran outside amp.scale_loss, so its gradients never reached the master weights; write "
                "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`"
            )
        self.pull()
        if self.skip:
            self._hidden = [(p, p.grad) for p in self._parameters()]
            for p, _ in self._hidden:
                p.grad = None

    def _after_step(self, optimizer, args, kwargs):
        for p, gradient in self._hidden:
            p.grad = gradient
        for weight, master in self._pairs:
            master.push(weight)
            weight.grad = master.value.grad = None  # model.zero_grad() does not know the masters
        self._hidden, self.skip, self._fresh = [], False, False

    def zero_grad(self, set_to_none=True):
        """Forget all gradients: those of the model's weights, of the masters, and those that wait."""
        self._zero_grad(set_to_none)
        for weight in self._halves():
            weight.grad = None
        self._kept, self._scale = {}, None

    def add_param_group(self, param_group):
        """Add a group; its half weights get masters."""
        self._add_param_group(param_group)
        try:
            self._adopt({})
        except ValueError:
            self.optimizer.param_groups.pop()
            raise


def _shares(model, ids):
    """Whether `model` has one of the parameters with these ids."""
    return any(id(p) in ids for p in model.parameters())
