"""hvd.elastic: trainings that lose ranks go on from the last commit; what loses no rank is in hvd_cases/elastic.py."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from kernel import ROOT
from torch import nn

import helpers
from platforms.horovod.core import place

SAMPLES, BATCH = 48, 2


class Line(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return i


def inputs(indices):
    return torch.stack([torch.tensor([i, i % 5, 1.0]).double() / 10 for i in indices])


def loss_of(model, indices):
    return (model(inputs(indices)) - inputs(indices).sum(1, keepdim=True).sin()).square().mean()


def new_training():
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def elastic_training(lost_at, way, commit_every=2):
    """Two epochs; before a step the given ranks are killed, or think that something failed. What the state knows."""
    import platforms.horovod.torch as hvd

    hvd.init()
    model, optimizer = new_training()
    if hvd.rank():
        nn.init.zeros_(model[0].weight)  # only rank 0's start counts
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(Line(), seed=3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, schedule=schedule, epoch=0, step=0, log=[])
    resets, starts = [], []
    state.register_reset_callbacks([lambda: resets.append((hvd.rank(), hvd.size()))])

    @hvd.elastic.run
    def train(state, end):
        starts.append(state.step)
        while state.epoch < end:
            loader = torch.utils.data.DataLoader(Line(), batch_size=BATCH, sampler=state.sampler)
            for i, batch in enumerate(loader):
                if (state.step, hvd.rank()) in lost_at and len(starts) == 1 and not place.restart():
                    if way == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise hvd.HorovodInternalError("a transient failure")
                one_batch(hvd, state, i, batch)
                if state.step % commit_every == 0:
                    state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()
        return "trained"

    assert train(state, 2) == "trained"
    known = {"log": state.log, "starts": starts, "resets": resets}
    known["parameters"] = [p.detach() for p in model.parameters()]
    hvd.shutdown()
    return known


def one_batch(hvd, state, i, batch):
    state.optimizer.zero_grad()
    loss_of(state.model, batch.tolist()).backward()
    state.optimizer.step()
    state.schedule.step()
    state.log.append((state.epoch, hvd.allgather(batch).tolist()))
    state.step += 1
    state.sampler.record_batch(i, len(batch))


def replayed(log):
    """The parameters after the logged batches, in one process."""
    model, optimizer = new_training()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    for _, indices in log:
        optimizer.zero_grad()
        loss_of(model, indices).backward()
        optimizer.step()
        schedule.step()
    return [p.detach() for p in model.parameters()]


def check_training(known):
    """Every index once in each epoch, and a training that one process would have done just so."""
    for epoch in (0, 1):
        seen = sorted(index for e, indices in known["log"] for index in indices if e == epoch)
        assert seen == list(range(SAMPLES)), seen
    for ours, theirs in zip(known["parameters"], replayed(known["log"]), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.long)])
def test_after_a_loss_all_are_started_again_and_go_on_from_the_commit(victim, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, test_hvd_elastic as here\n"
        f"torch.save(here.elastic_training({{(3, {victim})}}, 'killed'), '{tmp_path}/' + os.environ['RANK'])\n"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]), TMPDIR=str(tmp_path))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "platforms.horovod", "-np", "2", "--min-np", "1", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        known = torch.load(tmp_path / str(rank), weights_only=False)
        assert known["starts"] == [2]  # the commit before the loss, of another process
        check_training(known)
    assert not list(tmp_path.rglob("*.commit")), "the file of commits was left behind"


@pytest.mark.parametrize("who", [[1], pytest.param([0, 1], marks=pytest.mark.long)])
def test_transient_failures_lose_nobody(who):
    """A rank that only thinks that something failed comes back; the others notice and meet it."""
    for known in helpers.launch(elastic_training, 2, {(3, r) for r in who}, "raises", threads=1, timeout=1800):
        assert known["starts"] == [0, 2] and [size for _, size in known["resets"]] == [2]
        check_training(known)
