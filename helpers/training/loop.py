"""The one training loop. Every rank of every strategy runs it.

Two runs differ in exactly what their RunConfigs differ in.
"""

import time
from contextlib import nullcontext
from itertools import count

import torch
import torch.distributed as dist

from .. import device, measure
from ..cluster.torchrun import process_start, restarts
from ..data import loaders, sets
from ..group.process_group import distributed
from ..launcher.rank import emit
from . import checkpoint, compiled, memory, models, own, precision, recompute, schedules, strategies, sync_batch_norm
from .evaluation import evaluate

EVENT_EVERY = 0.2  # s between progress events
OPTIMIZERS = {  # name: (class, settings that are its options)
    "sgd": (torch.optim.SGD, ("momentum", "weight_decay")),
    "adamw": (torch.optim.AdamW, ("weight_decay",)),
}
ON_THE_WAY = ("epoch", "step", "train_s")  # what a point of the curve has more than the last evaluation


def train(config, started=None, tell=emit):
    """Train as `config` (a RunConfig) says, in the world this process was launched into.

    When torchrun has restarted a run because a rank or a host was lost, it resumes from its newest
    checkpoint as if `config.resume` were set.

    Args:
        started: time.time() when the run was asked for (default: when this process began).
        tell: gets progress events on rank 0, as `tell(name, **values)`.

    Returns:
        On rank 0 what was measured (the "measured" part of a record), on other ranks None.

    Raises:
        ValueError: the data cannot be trained on as configured, the hosts do not run the ranks that they should, or a
            new run would start among the checkpoints of another.
        CheckpointError: no checkpoint to resume from is sound, or they belong to a different run.
    """
    parts = measure.TimeBreakdown()
    parts.seconds["start"] = time.time() - (started or process_start())
    torch.set_num_threads(config.threads or device.machine(config.device).threads)
    kind = device.machine(config.device).kind  # what is offloaded is reduced on the CPU, which NCCL cannot
    backend = "cpu:gloo,cuda:nccl" if config.offload and kind == "cuda" else None
    with parts.part("start"), distributed(config.device, backend) as world:
        return Run(config, world, parts, tell if world.is_main else lambda *_, **__: None).complete()


class Run:
    """The state of one rank while it trains."""

    def __init__(self, config, world, parts, tell):
        self.config, self.world, self.parts, self.tell = config, world, parts, tell
        _check_hosts(config, world)
        device.reset_peak_memory(world.device)
        with parts.part("data"):
            train_set, self.test_set = sets.pair(config.data)
            options = {name: getattr(config, name) for name in ("global_batch", "seed", "augment", "num_workers")}
            options.update(device=world.device, rank=world.rank, world_size=world.size)
            path, self.reading = own.input_path(config, train_set, world.device)
            self.loader = loaders.make_loader(train_set, path=path, **options)
        torch.manual_seed(config.seed)  # the same weights on every rank
        self.tokens = getattr(train_set, "length", None)  # in a sample, if it is a sequence of them
        self.samples = sets.samples_are(train_set)
        self.model = models.make(config.model, sets.classes(train_set), self.tokens).to(world.device)
        self.loss_fn = config.loss or models.loss_of(self.model)
        self.strategy = strategies.make(config, world.device)
        if callable(config.model):
            ask = isinstance(self.strategy, strategies.DDP)
            self.strategy.unused = own.prepare(self.model, train_set, world.device, ask)
        if config.sync_batch_norm:
            self.model = sync_batch_norm.convert(self.model, world.device)
        if config.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self.precision = precision.make(config.precision, self.model, world.device, sharded=self.strategy.sharded)
        self.warm_from = config.warmup_steps
        recompute.prepare(self.model, config.activation_checkpointing)
        compiled.prepare(config, self.model, self.strategy, lambda text: self.tell("note", text=text))
        self.wrapped = self.strategy.wrap(self.model, self.precision.gathered_in)
        self.note = device.oversubscribed(config.nproc_per_node, config.threads, config.device)
        kind, options = OPTIMIZERS[config.optimizer]
        options = {name: getattr(config, name) for name in options}
        self.optimizer = self.strategy.optimizer(kind, self.precision.parameters, lr=config.peak_lr, **options)
        torch.manual_seed(config.seed + 1 + world.rank)  # but dropout of its own on each
        self.total_steps = config.steps or config.epochs * len(self.loader)
        self.lr_warmup_steps = round(config.lr_warmup_epochs * len(self.loader))
        self.step = self.first_step = 0
        self.losses, self.step_times, self.waits, self.epochs, self.loss_scales, self.curve = [], [], [], [], [], []
        self.trained_s, self.last_told, self.peak_memory, self.activations = 0.0, 0.0, 0, None  # s, s, bytes, bytes

    def complete(self):
        """Train from where the run stands to its end, evaluate, and return what was measured."""
        self.restarts = restarts(self.world)
        if self.config.resume or (self.restarts and self.config.checkpoint_dir):
            checkpoint.resume(self)
        else:
            checkpoint.check_unused(self.config)
        self.first_step, self.trained_before_s = self.step, self.trained_s
        self._train()
        current = bool(self.curve) and self.curve[-1]["step"] == self.step
        evaluation = self.curve[-1] if current else self._evaluation()
        return self._measured(evaluation and {k: v for k, v in evaluation.items() if k not in ON_THE_WAY})

    # -- the loop -------------------------------------------------------------------------

    def _train(self):
        self.wrapped.train()
        for epoch in count(self.step // len(self.loader)):
            if self.step >= self.total_steps:
                return
            done = self.step % len(self.loader)
            self.loader.set_epoch(epoch)
            self.loader.start_batch = done
            before, first = self.trained_s, self.step
            batches = iter(self.loader)
            for _ in range(min(len(self.loader) - done, self.total_steps - first)):
                self._timed_step(batches)
                self._evaluate_if_due()
                self._save_if_due()
            self.epochs.append({"epoch": epoch, "steps": self.step - first, "s": self.trained_s - before})

    def _timed_step(self, batches):
        """One step from asking for the batch to the end of the update, as the device sees it."""
        warm = self.step - self.first_step >= self.warm_from
        with self.parts.part("steps" if warm else "warm-up"):
            began = time.perf_counter()
            inputs, labels = next(batches)
            loaded = time.perf_counter()
            loss = self._update(inputs, labels)
            device.synchronize(self.world.device)
            ended = time.perf_counter()
        self.step += 1
        if not compiled.plan_is_chosen(self.config, self.model):
            self.warm_from = self.step - self.first_step + 1 + self.config.warmup_steps
        self.losses.append(loss)
        self.trained_s += ended - began
        if self.precision.scaler.is_enabled():
            self.loss_scales.append(self.precision.scaler.get_scale())
        if warm:
            self.step_times.append(ended - began)
            self.waits.append(loaded - began)
        if ended - self.last_told > EVENT_EVERY or self.step == self.total_steps:
            self.last_told = ended
            self.tell(
                "step",
                label=self.config.label,
                step=self.step,
                steps=self.total_steps,
                loss=loss.item(),
                images_per_s=self.config.global_batch / (ended - began),
                step_s=ended - began,
                epoch=(self.step - 1) // len(self.loader) + 1,
                peak_memory=device.peak_memory(self.world.device),
                first_step=self.first_step,
                trained_s=self.trained_s - self.trained_before_s,
                samples=self.samples,
            )

    def _update(self, inputs, labels):
        """Forward, backward and update on this rank's part of a global batch; its mean loss."""
        share = schedules.factor(self.step, self.total_steps, self.config.schedule, self.lr_warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = share * self.config.peak_lr
        self.precision.zero_grad()
        parts = self.config.accumulation
        mean = 0.0
        for part, micro_batch in enumerate(zip(inputs.chunk(parts), labels.chunk(parts), strict=True), 1):
            last = part == parts  # one exchange of gradients an update is enough
            with nullcontext() if last else self.strategy.without_reduction(self.wrapped):
                with self._activations() as activations:
                    loss = self.loss_fn(self._forward(self.wrapped, micro_batch[0]), micro_batch[1]) / parts
                if activations:
                    self.activations = activations.bytes
                self.precision.backward(loss)
            mean += loss.detach()
        self.precision.step(self.optimizer, self.config.clip_norm)
        return mean

    def _forward(self, model, inputs):
        if self.config.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return self.precision.forward(model, inputs)

    def _activations(self):
        """A context that counts activations if the first forward pass is not timed and not compiled or in threads."""
        seen = self.config.compiler == "none" and self.strategy.visible
        untimed = self.step == self.first_step and self.warm_from > 0
        return memory.Activations(self.model) if seen and untimed and self.activations is None else nullcontext()

    # -- evaluation -----------------------------------------------------------------------

    def _evaluation(self):
        """Accuracy on the whole test set now, or None if the run has no test set."""
        self.peak_memory = max(self.peak_memory, device.peak_memory(self.world.device))  # that of training
        if not self.config.evaluate or self.test_set is None:
            return None
        # Compiled modules run eagerly: an evaluation shall not trigger a recompilation.
        with self.parts.part("evaluation"), torch.compiler.set_stance("force_eager"):
            found = evaluate(self.model, self.test_set, self.world, self.loss_fn, self._forward)
        self.strategy.after_evaluation(self.model)
        return found

    def _evaluate_if_due(self):
        epoch, more = divmod(self.step, len(self.loader))
        if not self.config.evaluate_every or more or epoch % self.config.evaluate_every:
            return
        if (found := self._evaluation()) is not None:
            self.curve.append({"epoch": epoch, "step": self.step, "train_s": self.trained_s, **found})
        self.wrapped.train()
        device.reset_peak_memory(self.world.device)

    def _save_if_due(self):
        every = self.config.checkpoint_every or len(self.loader)
        if self.config.checkpoint_dir and (self.step % every == 0 or self.step == self.total_steps):
            with self.parts.part("checkpoint"):
                checkpoint.save_run(self)

    # -- what is left behind --------------------------------------------------------------

    def _measured(self, evaluation):
        held = memory.held(self.model, self.precision.parameters, self.optimizer)
        own = [float(loss) for loss in self.losses]
        ranks = [None] * self.world.size  # once for all steps: an exchange a step would slow what is being measured
        dist.all_gather_object(ranks, (self.peak_memory, {**held, "activations": self.activations}, own))
        peaks, held, losses = map(list, zip(*ranks, strict=True))
        losses = [sum(step) / self.world.size for step in zip(*losses, strict=True)]
        if not self.world.is_main:
            return None
        notes = self.strategy.note, self.reading, self.note, compiled.note(self.config, self.model)
        timed = {"step_time_s": self.step_times, "input_wait_s": self.waits}
        rates = {"images_per_s": [self.config.global_batch / seconds for seconds in self.step_times]}
        enough = len(self.step_times) >= measure.AT_LEAST
        return {
            "note": "; ".join(filter(None, notes)),
            "compiler": compiled.measured(self.config, self.model),
            "first_step": self.first_step,
            "steps": self.step,
            "world_size": self.world.size,
            "hosts": [{"name": host.name, "ranks": list(host.ranks)} for host in self.world.hosts],
            "restarts": self.restarts,
            "communication": self.strategy.communication(self.wrapped),
            **{name: measure.summary(values) if enough else None for name, values in (timed | rates).items()},
            "samples": {**timed, "loss": losses, "loss_scale": self.loss_scales},
            "skipped_steps": self.precision.skipped,
            "loss_scale": self.loss_scales[-1] if self.loss_scales else None,
            "curve": self.curve,
            "final_loss": losses[-1] if losses else None,
            "epochs": self.epochs,
            "evaluation": evaluation,
            "peak_memory_bytes": peaks,
            "memory_bytes": held,
            "parts_s": self.parts.so_far(),
            "input_path": self.loader.path,
            "tokens_per_sample": self.tokens,
            "samples_are": self.samples,
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }


def _check_hosts(config, world):
    counts = [len(host.ranks) for host in world.hosts]
    if len(counts) != config.nnodes or (config.nnodes > 1 and {*counts} != {config.nproc_per_node}):
        found = ", ".join(f"{host.name} runs {len(host.ranks)}" for host in world.hosts)
        meant = f"{config.nnodes} hosts with {config.nproc_per_node} ranks each"
        raise ValueError(f"{config.label} is meant for {meant} (nnodes, nproc_per_node); {found}")
