"""Which torch the kit runs on, and what it says of one that will not do."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import RunConfig, launch, releases, run
from helpers import __main__ as cli
from tools import choose_torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes pip's notes on a package found first: installed(torch="2.4.1")."""
    monkeypatch.syspath_prepend(str(tmp_path))
    releases.check.cache_clear()

    def note(**versions):
        for name, version in versions.items():
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    yield note
    releases.check.cache_clear()


def test_a_torch_too_old_is_named_with_the_command_before_any_process_starts(installed):
    installed(torch="2.4.1")
    with pytest.raises(releases.UnfitTorch, match=r"torch 2\.4\.1.*pip install --upgrade torch"):
        launch(print, 2)


def test_without_torchvision_what_needs_it_is_refused_before_it_starts(monkeypatch):
    found = releases.version_of
    monkeypatch.setattr(releases, "version_of", lambda name: None if name == "torchvision" else found(name))
    with pytest.raises(releases.UnfitTorch, match="install torchvision torch==" + re.escape(found("torch"))):
        run(RunConfig(model="resnet18", steps=1))


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="for Linux on x86-64")
@pytest.mark.parametrize("vision, fits", [(None, False), ("0.23.0", False), ("0.23.0+cpu", True)])
def test_a_torch_without_cuda_gets_no_torchvision_that_wants_it(vision, fits, monkeypatch):
    monkeypatch.setattr(releases, "version_of", {"torch": "2.8.0+cpu", "torchvision": vision}.get)
    if fits:
        releases.need_torchvision("this run")
    else:
        with pytest.raises(releases.UnfitTorch, match="torchvision"):
            releases.need_torchvision("this run")
    monkeypatch.setattr(choose_torch.releases, "version_of", releases.version_of)
    constraints, _ = choose_torch.kept("python")
    called = []
    monkeypatch.setattr(subprocess, "call", called.extend)
    choose_torch.install(constraints)
    assert called[-1].endswith("[vision]") == fits


def test_a_gpu_that_torch_cannot_use_is_not_passed_over(tmp_path, monkeypatch, capsys):
    import torch

    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Tesla V100-SXM2-16GB, 535.129.03, 7.0'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("HELPERS_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = releases.idle_gpus()
    assert "Tesla V100" in said and torch.__version__ in said
    assert cli.main(["run", "--steps", "1"]) == 2
    assert said in capsys.readouterr().err
    monkeypatch.setenv("HELPERS_DEVICE", "cpu")
    assert releases.idle_gpus() == ""


@pytest.mark.long
def test_installing_the_kit_leaves_torch_alone():
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--report", "-", "-e", str(ROOT)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    changed = {package["metadata"]["name"] for package in json.loads(done.stdout)["install"]}
    assert changed <= {"training-helpers", "triton"}  # torch wants triton, which tools/bootstrap.sh may leave out
