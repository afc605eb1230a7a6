"""Training across two hosts (network namespaces): the same losses, and what happens when something is lost."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import hosts_lab as lab
import pytest
from kernel import ROOT, running, wait_until

from helpers import RankError, RunConfig, launch
from helpers.cluster import commands as hosts
from helpers.cluster import twohosts
from helpers.training.loop import train

pytestmark = pytest.mark.skipif(twohosts.why_not() is not None, reason=f"no two hosts here: {twohosts.why_not()}")
ODD = 'it\'s a folder, "so" to $peak'


@pytest.fixture(scope="module")
def pair():
    with twohosts.two_hosts() as made:
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Losses of the same training on one host, by number of ranks."""
    settings = dict(model="silu_mlp", strategy="ddp", global_batch=32, steps=12, threads=1, device="cpu")
    return {n: launch(train, n, RunConfig(nproc_per_node=n, **settings))[0]["samples"]["loss"] for n in (2, 4)}


def printed(pair, tmp_path, launcher, per_host=1):
    """What `hosts` prints for this training, in folders with odd names."""
    (folder := tmp_path / ODD).mkdir()
    train = ["train", *shlex.split(lab.TRAIN), "--checkpoint_dir", str(folder / "saved"), "--checkpoint_every=9"]
    environment = {"HELPERS_RESULTS": str(folder), "PYTHONPATH": str(ROOT)}
    settings = dict(nnodes=2, nproc_per_node=per_host, hosts=pair.names, folder=str(folder), environment=environment)
    return hosts.commands(train, **settings)[launcher]


def outputs(processes):
    try:
        return [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, 9)


def check_record(record, alone, per_host):
    """One record for the whole run."""
    assert record["status"] == "completed" and record["error"] is None
    assert record["label"] == f"DDP ×{2 * per_host} · 2 hosts" and record["config"]["nnodes"] == 2
    measured, ranks = record["measured"], list(range(2 * per_host))
    halves = [{"name": "host0", "ranks": ranks[:per_host]}, {"name": "host1", "ranks": ranks[per_host:]}]
    assert measured["hosts"] == halves and measured["world_size"] == 2 * per_host
    assert len(measured["peak_memory_bytes"]) == 2 * per_host and min(measured["peak_memory_bytes"]) > 1e8
    assert lab.losses(record) == alone[2 * per_host][measured["first_step"] :]


@pytest.mark.long
def test_the_printed_torchrun_commands(pair, alone, tmp_path):
    commands = re.findall(r"^# on (host\d):\n(.*)", printed(pair, tmp_path, "torchrun"), re.MULTILINE)
    assert [name for name, _ in commands] == ["host0", "host1"]
    processes = [lab.in_shell(pair, host, text) for host, (_, text) in enumerate(commands)]
    said = outputs(processes)
    assert [process.returncode for process in processes] == [0, 0], said
    (record,) = lab.records(tmp_path / ODD)
    check_record(record, alone, 1)
    assert f"record: host0:{tmp_path / ODD}/runs/{record['run_id']}.json" in said[0] and "record:" not in said[1]
    saved = sorted(path.name for path in (tmp_path / ODD / "saved").iterdir())
    assert saved == ["step-000000009.pt", "step-000000012.pt"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's mpirun is not installed (Debian: openmpi-bin)")
@pytest.mark.parametrize("per_host", [1, 2])
def test_the_printed_mpirun_command(pair, alone, tmp_path, per_host):
    """With two ranks a host, which find each other without MASTER_ADDR."""
    text = printed(pair, tmp_path, "mpirun", per_host)
    if per_host == 2:
        text, removed = re.subn(r"-x MASTER_(ADDR=host0|PORT=29500) ", "", text)
        assert removed == 2
    process = lab.in_shell(pair, 0, f"cd {shlex.quote(str(tmp_path))}\n{text}", **lab.mpirun_here(pair))
    (said,) = outputs([process])
    assert process.returncode == 0, said
    (record,) = lab.records(tmp_path / ODD)
    check_record(record, alone, per_host)


def saving(folder):
    return f"{lab.TRAIN} --checkpoint-every 5 --checkpoint-dir {shlex.quote(str(folder))}"


def agents(pair, tmp_path, train, plan=None, wait=100, **settings):
    return lab.Agents(pair, lab.words(pair, train, **settings), [tmp_path, tmp_path], plan, wait)


@pytest.mark.long
@pytest.mark.parametrize("killed, per_host", [(False, 2), (True, 1)])
def test_torchrun_with_two_ranks_a_host_and_with_one_that_is_killed(pair, alone, tmp_path, killed, per_host):
    plan = {"dies": [1, 7]} if killed else None
    with agents(pair, tmp_path, saving(tmp_path / ODD), plan, per_host=per_host, max_restarts=1) as started:
        assert [answer.result()[0] for answer in started.start(0, 1)] == [0, 0]
    (record,) = lab.records(tmp_path)
    assert (record["measured"]["first_step"], record["measured"]["restarts"]) == (5 * killed, killed)
    check_record(record, alone, per_host)


@pytest.mark.long
def test_an_agent_is_killed_and_hosts_share_no_folder(pair, alone, tmp_path):
    for host in (0, 1):
        (tmp_path / f"disk{host}").mkdir()
    (tmp_path / "disk").mkdir()
    for host in (0, 1):
        own = ["mount", "--bind", str(tmp_path / f"disk{host}"), str(tmp_path / "disk")]
        subprocess.run(pair.command(host, own), check=True)
    with agents(pair, tmp_path, saving(tmp_path / "disk"), {"agent dies": [1, 7]}, max_restarts=1) as started:
        first, second = started.start(0, 1)
        with pytest.raises(RankError, match="SIGKILL"):
            second.result()
        (third,) = started.start(1)
        assert [answer.result()[0] for answer in (first, third)] == [0, 0]
    (record,) = lab.records(tmp_path)
    assert (record["measured"]["first_step"], record["measured"]["restarts"]) == (5, 1)
    check_record(record, alone, 1)
    assert len(list((tmp_path / "disk0").iterdir())) == 2 and not list((tmp_path / "disk1").iterdir())


@pytest.mark.long
def test_the_link_is_out_for_a_while(pair, alone, tmp_path):
    with agents(pair, tmp_path, saving(tmp_path / ODD), {"note": [1, 7]}, timeout=10, max_restarts=2) as started:
        answers = started.start(0, 1)
        ranks = started.cut()
        gave_up = wait_until(lambda: not all(map(running, ranks)), 300)
        pair.mend()
        assert ranks and gave_up is not None
        assert [answer.result()[0] for answer in answers] == [0, 0]
    (record,) = lab.records(tmp_path)
    assert record["measured"]["first_step"] == 5 and record["measured"]["restarts"] >= 1
    check_record(record, alone, 1)


@pytest.mark.long
def test_the_link_is_cut(pair, tmp_path):
    """Also that a host which does not come is an error that names those who did."""
    plan = {"note": [1, 2]}
    try:
        with agents(pair, tmp_path, saving(tmp_path / ODD), plan, wait=15, timeout=10, max_restarts=1) as started:
            answers = started.start(0, 1)
            started.cut()
            status, said = answers[0].result()
    finally:
        pair.mend()
    assert status == 1 and "1 of 2 hosts came within 15 s: host0 (this is host0)" in said
    (record,) = lab.records(tmp_path)
    assert record["status"] == "failed" and "RuntimeError" in record["error"]


# -- the link -----------------------------------------------------------------------------


def exchange(megabytes=0.0, times=3):
    """The least seconds that an all-reduce took, the bytes that each put on the link, and where this rank is."""
    import torch
    import torch.distributed as dist

    import helpers

    with helpers.distributed(timeout=300) as world:
        numbers = torch.ones(max(1, round(megabytes * 250_000)))
        dist.all_reduce(numbers)
        spent, before = [], twohosts.bytes_sent()
        for _ in range(times):
            began = time.perf_counter()
            dist.all_reduce(numbers)
            spent.append(time.perf_counter() - began)
        sent = (twohosts.bytes_sent() - before) / times
        return min(spent), sent, (world.rank, world.node_rank, world.local_rank, world.hosts)


def test_ranks_of_the_launcher_on_two_hosts(pair):
    answers = pair.run(exchange, 1.0, per_host=2)
    assert [answer[2][:3] for answer in answers] == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    halves = [("host0", (0, 1)), ("host1", (2, 3))]
    assert [(host.name, host.ranks) for host in answers[0][2][3]] == halves
    with pytest.raises(RankError, match="meant for 1 hosts with 2 ranks each"):
        pair.run(train, RunConfig(strategy="ddp", nproc_per_node=2, steps=1))


@pytest.mark.long
@pytest.mark.parametrize("delay", [None, 0])
def test_a_narrow_link_takes_its_time(delay):
    with twohosts.two_hosts(rate=40, delay=delay) as narrow:
        seconds, sent, _ = narrow.run(exchange, 1.0)[0]
        assert 0.9e6 < sent < 1.8e6 and 0.18 < seconds  # each of two ranks sends 1 MB, or again what came late: 0.2 s
        narrow.shape(400, delay)
        assert narrow.run(exchange, 1.0, 30)[0][0] < seconds  # the least of many


@pytest.mark.long
def test_nothing_stays_when_the_maker_is_killed():
    script = (
        "import os, signal\nfrom helpers.cluster import twohosts\n"
        "with twohosts.two_hosts(delay=1) as made:\n"
        "    print(*made.processes, made.emulator.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=300)
    left = [int(number) for number in done.stdout.split()]
    assert done.returncode == -9 and len(left) >= 2
    assert wait_until(lambda: not any(map(running, left)), 100) is not None
