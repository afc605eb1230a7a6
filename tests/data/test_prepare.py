"""Prepared sets: right content, checked, and whole or absent whatever happens."""

import functools
import hashlib
import http.server
import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from helpers.data import prepare, recipes, store
from helpers.data.recipes import RECIPES, Recipe
from helpers.data.sets import DataMissing, ensure, load

REPO = Path(__file__).resolve().parents[2]
BATCHES = "cifar-10-batches-py"


def start(*arguments, command=(sys.executable, "-m", "helpers.data.prepare"), env=(), cwd=REPO, **options):
    """Start `python -m helpers.data.prepare ...` or another command in its own process."""
    return subprocess.Popen(
        [*map(str, command), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | dict(env),
        cwd=cwd,
        **options,
    )


def finish(process):
    """Wait for a started process; the result has returncode, stdout and stderr."""
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*arguments, **options):
    return finish(start(*arguments, **options))


def content(root):
    """Every file below a folder with its content, lock files left out."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(Path(root).rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def make(name, root, images=None, force=False):
    """prepare() with the said lines as the result."""
    lines = []
    prepare.prepare(name, root, images, force, say=lines.append)
    return "\n".join(lines)


def flip_byte(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with small sets, only read by the tests."""
    root = tmp_path_factory.mktemp("sets")
    make("digits", root)
    make("mock", root, 2003)
    make("imagenet-mock", root, 43)
    return root


# --- what is in the sets --------------------------------------------------------------------


def test_digits_are_scikit_learns_in_cifar_shape(root):
    from sklearn.datasets import load_digits

    train, test = load("digits", "train", root), load("digits", "test", root)
    assert (len(train), len(test)) == (1437, 360)
    images = torch.cat([train.images, test.images])
    assert images.shape == (1797, 3, 32, 32) and images.dtype == torch.uint8
    assert train.labels.dtype == torch.int64 and not train.flip
    assert images[:, 0].equal(images[:, 1]) and images[:, 0].equal(images[:, 2])
    inner = images[:, 0, 4:28, 4:28]
    assert images.sum(dtype=torch.int64) == 3 * inner.sum(dtype=torch.int64)
    source = load_digits()
    # The centre of every enlarged pixel is the pixel itself: nothing lost, nothing twice.
    back = (inner[:, 1::3, 1::3].double() * 16 / 255).round().flatten(1)
    pairs = sorted(zip(back.tolist(), torch.cat([train.labels, test.labels]).tolist(), strict=True))
    assert pairs == sorted(zip(source.data.tolist(), source.target.tolist(), strict=True))
    share = test.labels.bincount() / torch.from_numpy(source.target).bincount()
    assert (share - 0.2).abs().max() < 0.01


def test_enlarge_is_bilinear():
    grids = np.random.RandomState(0).randint(-9, 10, (2, 5, 8))
    expected = torch.nn.functional.interpolate(torch.from_numpy(grids)[None].double(), scale_factor=3, mode="bilinear")[
        0
    ]
    assert torch.allclose(torch.from_numpy(recipes.enlarge(grids, 3) / 36), expected)


@pytest.mark.parametrize("name, sizes, pixels", [("mock", (2003, 400), 32), ("imagenet-mock", (43, 10), 224)])
def test_mock_sets_are_balanced(root, name, sizes, pixels):
    for split, n in zip(("train", "test"), sizes, strict=True):
        found = load(name, split, root)
        assert found.images.shape == (n, 3, pixels, pixels) and found.images.dtype == torch.uint8
        counts = found.labels.bincount(minlength=10)
        assert counts.max() - counts.min() <= 1 and found.flip and len(found.classes) == 10


def test_mock_can_be_learnt_but_not_at_a_glance(root):
    """Ridge regression on 4x4 thumbnails: well above chance (10 %), far below certainty."""

    def features(split):
        images = load("mock", split, root).images.double() / 255 - 0.5
        x = torch.nn.functional.avg_pool2d(images, 8).flatten(1)
        return torch.cat([x, x.abs(), torch.ones(len(x), 1)], 1), load("mock", split, root).labels

    (x, y), (x_test, y_test) = features("train"), features("test")
    weights = torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]), x.T @ torch.eye(10).double()[y])
    accuracy = ((x_test @ weights).argmax(1) == y_test).double().mean()
    assert 0.2 < accuracy < 0.8


@pytest.mark.parametrize("name", ["digits", "mock", "imagenet-mock"])
def test_mean_and_std_are_the_training_splits(root, name):
    train, test = load(name, "train", root), load(name, "test", root)
    pixels = train.images.double().div(255).transpose(0, 1).flatten(1)
    assert torch.allclose(torch.tensor(train.mean).double(), pixels.mean(1), atol=1e-6)
    assert torch.allclose(torch.tensor(train.std).double(), pixels.std(1, correction=0), atol=1e-6)
    assert (train.mean, train.std) == (test.mean, test.std)


@pytest.mark.parametrize("name, images", [("digits", None), ("mock", 2003), ("imagenet-mock", 43)])
def test_same_recipe_same_bytes(root, tmp_path, name, images):
    make(name, tmp_path, images)
    assert content(tmp_path / name) == content(root / name)
    manifest = json.loads((tmp_path / name / "MANIFEST.json").read_text())
    for path, entry in manifest["files"].items():
        raw = (tmp_path / name / path).read_bytes()
        assert entry == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


# --- repeated, damaged, changed -------------------------------------------------------------


def written(root):
    stats = {path: path.stat() for path in root.rglob("*")}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def test_second_run_changes_nothing(tmp_path):
    assert "mock: ready, 20 train + 4 test images, 4 files" in make("mock", tmp_path, 20)
    before = written(tmp_path)
    assert re.fullmatch("mock: already there, 20 train .* verified", make("mock", tmp_path, 20))
    assert written(tmp_path) == before
    assert "making it again" in make("mock", tmp_path, 20, force=True)


DAMAGE = {
    "a flipped bit": (lambda folder: flip_byte(folder / "train_images.npy"), "SHA-256"),
    "a truncated file": (lambda folder: os.truncate(folder / "test_images.npy", 100), "bytes"),
    "a missing file": (lambda folder: (folder / "train_labels.npy").unlink(), "missing"),
    "half a manifest": (lambda folder: os.truncate(folder / "MANIFEST.json", 50), "MANIFEST"),
    "an empty manifest": (lambda folder: (folder / "MANIFEST.json").write_text("[]"), "MANIFEST"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_said_refused_and_mended(tmp_path, kind, capsys):
    make("mock", tmp_path, 50)
    whole = content(tmp_path)
    damage, word = DAMAGE[kind]
    damage(tmp_path / "mock")
    with pytest.raises(DataMissing, match=r"(?s)damaged.*mock --root"):
        load("mock", "train", tmp_path), load("mock", "test", tmp_path)
    assert prepare.main(["mock", "--verify", "--root", str(tmp_path)]) == 1
    assert "damaged" in capsys.readouterr().out
    said = make("mock", tmp_path, 50)
    assert "damaged" in said and word in said and "making it again" in said
    assert content(tmp_path) == whole
    assert prepare.main(["mock", "--verify", "--root", str(tmp_path)]) == 0


def test_another_size_or_recipe_is_made_anew(tmp_path, monkeypatch):
    make("mock", tmp_path, 50)
    assert "images 50, not 60" in make("mock", tmp_path, 60)
    assert len(load("mock", "train", tmp_path)) == 60
    newer = Recipe("x", recipes.make_mock, (), 60, 99, version=3)
    monkeypatch.setitem(RECIPES, "mock", newer)
    with pytest.raises(DataMissing, match="version 2, not 3"):
        load("mock", "train", tmp_path)
    assert "version 2, not 3" in make("mock", tmp_path)


def test_foreign_files_are_kept(tmp_path):
    (tmp_path / "mock").mkdir()
    make("mock", tmp_path, 10)  # an empty folder is no obstacle
    for name in ("digits", "imagenet-mock"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("mine")
        with pytest.raises(store.PrepareError, match="not made by this program"):
            make(name, tmp_path)
        assert (tmp_path / name / "thesis.txt").read_text() == "mine"
    make("imagenet-mock", tmp_path, 10, force=True)
    assert not (tmp_path / "imagenet-mock" / "thesis.txt").exists()


# --- interrupted ----------------------------------------------------------------------------


def partial(root):
    return [path.name for path in Path(root).glob(".*.part")]


@pytest.mark.parametrize(
    "number, code",
    [
        (signal.SIGINT, 130),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
    ],
)
def test_stopped_while_making(tmp_path, number, code):
    # A shell's background jobs, and so perhaps these tests, start with SIGINT ignored.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = start("mock", "--images", 100_000, "--root", tmp_path, preexec_fn=heed)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob(".mock.*.part/*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert partial(tmp_path) and process.poll() is None
    process.send_signal(number)
    result = finish(process)
    assert result.returncode == code and "Traceback" not in result.stderr
    assert content(tmp_path) == {} or number == signal.SIGKILL
    assert bool(partial(tmp_path)) == (number == signal.SIGKILL)
    with pytest.raises(DataMissing):
        load("mock", "train", tmp_path)
    assert "mock: ready" in make("mock", tmp_path, 10)
    assert not partial(tmp_path)


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "cleans_up, old",
    [
        (False, 20),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((True, None), (True, 20), (False, None))),
    ],
)
def test_stopped_at_any_step(tmp_path, monkeypatch, old, cleans_up):
    """At every fsync and rename: afterwards the set is whole or absent, and the next run mends."""

    def limited(function):
        def step(*arguments):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*arguments)

        return step

    stops, finished = 0, False
    while not finished:
        root = tmp_path / str(stops)
        if old:
            make("mock", root, old)
        with monkeypatch.context() as patch:
            left = stops
            patch.setattr(os, "fsync", limited(os.fsync))
            patch.setattr(Path, "rename", limited(Path.rename))
            if not cleans_up:
                patch.setattr(prepare, "remove_leftovers", lambda final: None)
            try:
                make("mock", root, 10)
                finished = True
            except Killed:
                stops += 1
        if cleans_up:
            assert not partial(root)
        for split in ("train", "test"):
            try:
                assert len(load("mock", split, root)) in ([10, 2] + ([old, old // 5] if old else []))
            except DataMissing as missing:
                assert "is not there" in str(missing)
        make("mock", root, 10)
        assert len(load("mock", "train", root)) == 10 and not partial(root)
    assert stops >= 8  # four files, the manifest, two folders and a rename


def test_concurrent_runs_make_it_once(tmp_path):
    processes = [start("mock", "--images", 4000, "--root", tmp_path) for _ in range(3)]
    results = [finish(process) for process in processes]
    outputs = [result.stdout for result in results]
    assert [result.returncode for result in results] == [0, 0, 0]
    assert sum("mock: ready" in output for output in outputs) == 1
    assert sum("already there" in output for output in outputs) == 2
    assert len(load("mock", "train", tmp_path)) == 4000 and not partial(tmp_path)


def test_a_run_waits_for_the_lock(tmp_path):
    tmp_path.mkdir(exist_ok=True)
    with store.locked(tmp_path / ".mock.lock", waiting=None):
        process = start("mock", "--images", 10, "--root", tmp_path, env={"PYTHONUNBUFFERED": "1"})
        assert "another run is preparing it; waiting" in process.stdout.readline()
        assert content(tmp_path) == {}
    assert "mock: ready" in finish(process).stdout


# --- disks that refuse ----------------------------------------------------------------------


def unshared(*words):
    """A command line in which this process may mount, and only it sees the mount."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", *words]


def can_mount(folder):
    mount = unshared('mount -t tmpfs tmpfs "$0"', str(folder))
    return shutil.which("unshare") and subprocess.run(mount, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "options, words",
    [
        ("size=64k", "No space left on device"),
        ("ro", "Read-only file system"),
    ],
)
def test_full_and_read_only_disk(tmp_path, options, words):
    if not can_mount(tmp_path):
        pytest.skip("mounting a small file system is not permitted here")
    script = f'mount -t tmpfs -o {options} tmpfs "$0" && "$@"; code=$?; ls -A "$0"; exit $code'
    result = run(
        tmp_path,
        sys.executable,
        "-m",
        "helpers.data.prepare",
        "mock",
        "--images",
        100,
        "--root",
        tmp_path,
        command=unshared(script),
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and words in result.stderr and "--root" in result.stderr
    left = [line for line in result.stdout.splitlines() if not line.startswith("mock: making")]
    assert left == ([] if options == "ro" else [".mock.lock"])


def test_a_whole_set_on_a_read_only_disk_is_fine(tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("mounting a small file system is not permitted here")
    make("mock", tmp_path, 10)
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && ! touch "$0/x" && "$@"'
    result = run(
        tmp_path,
        sys.executable,
        "-m",
        "helpers.data.prepare",
        "mock",
        "--images",
        10,
        "--root",
        tmp_path,
        command=unshared(script),
    )
    assert result.returncode == 0 and "already there" in result.stdout


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/sets"])
def test_impossible_root(tmp_path, place, capsys):
    (tmp_path / "file").write_text("mine")
    assert prepare.main(["mock", "--images", "10", "--root", str(tmp_path / place)]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "--root" in message
    assert content(tmp_path) == {"file": b"mine"}


# --- the command line -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["cifar100"], "the sets are digits, mock, imagenet-mock, cifar10"),
        (["mock", "--images", "9"], "from 10 to 1,000,000; got 9"),
        (["mock", "--images", "1000001"], "from 10"),
        (["mock", "--images", "10.5"], "invalid int"),
        (["imagenet-mock", "--images", "0"], "from 10 to 100,000"),
        (["mock", "digits", "--images", "100"], "fixed size; a number of images can be chosen for mock, imagenet-mock"),
        (["mock", "--root", ""], "folder"),
        (["mock", "--force", "--verify"], "not allowed"),
        (["--what"], "unrecognized"),
    ],
)
def test_bad_command_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        prepare.main(arguments)
    assert stop.value.code == 2 and words in capsys.readouterr().err
    assert content(tmp_path) == {}


def test_output_does_not_change_from_run_to_run(tmp_path, capsys):
    texts = []
    for _ in range(2):
        prepare.main(["mock", "imagenet-mock", "mock", "--images", "10", "--root", str(tmp_path)])
        texts.append(capsys.readouterr().out)
        shutil.rmtree(tmp_path)
    assert texts[0] == texts[1] and texts[0].count("\n") == 4 and "\r" not in texts[0]


def test_a_terminal_sees_progress(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(store, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    progress = store.Progress("cifar10")
    for done in (1, 2):
        progress(done, 4), progress(done, 4)
        progress.shown = 1e-9  # as if time had passed
    progress(3_000_000, 0)
    progress.clear()
    shown = re.sub("\x1b\\[K", "", sys.stdout.getvalue()).split("\r")
    assert shown == ["", "cifar10: 25 %", "cifar10: 50 %", "cifar10: 3.0 MB", ""]


@pytest.fixture
def clone(tmp_path):
    """The parts of the repository that matter, below a folder whose name has spaces."""
    clone = tmp_path / "my clone"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPO / "helpers", clone / "helpers", ignore=ignored)
    (clone / "data").mkdir()
    shutil.copy(REPO / "data" / "prepare.sh", clone / "data")
    (clone / "pyproject.toml").touch()
    return clone


def wrapper(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def script(clone, *arguments, cwd, python=sys.executable):
    variables = {"PYTHON": str(python), "HELPERS_DATA": "", "PYTHONPATH": ""}
    return run(*arguments, command=["/bin/sh", clone / "data" / "prepare.sh"], env=variables, cwd=cwd)


def test_script_makes_digits_by_default_from_anywhere(clone, tmp_path):
    if sys.version_info >= (3, 11):  # where Python can be told not to look there
        wrapper(tmp_path / "helpers" / "__init__.py", "raise SystemExit('wrong helpers')")
    result = script(clone, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"1,437 train + 360 test images, 4 files, 5.5 MB in {clone}/data/digits" in result.stdout
    result = script(clone, "mock", "--images", 10, "--root", "here too", cwd=tmp_path)
    assert result.returncode == 0 and len(load("mock", "train", tmp_path / "here too")) == 10


def test_script_prefers_the_projects_python_and_explains_a_lack(clone, tmp_path):
    bad_pythons = {
        wrapper(tmp_path / "bare python", f"exec '{sys.executable}' -S \"$@\""): "No module named",
        wrapper(tmp_path / "broken", "echo broken; exit 1"): "broken",
        tmp_path / "absent": "not found",
    }
    for bad, words in bad_pythons.items():
        result = script(clone, cwd=tmp_path, python=bad)
        assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
        assert words in result.stderr and "'make data'" in result.stderr and result.stdout == ""
    wrapper(clone / ".venv" / "bin" / "python", f"exec '{sys.executable}' \"$@\"")
    result = script(clone, "--help", cwd=tmp_path, python=tmp_path / "absent")
    assert result.returncode == 0
    assert all(name in result.stdout for name in (*RECIPES, "--root", "HELPERS_CIFAR10_URL"))


def test_a_lacking_module_is_named(tmp_path, monkeypatch, capsys):
    lacking = Recipe("x", recipes.make_digits, ("numpy", "no_such_module"))
    monkeypatch.setitem(RECIPES, "digits", lacking)
    assert prepare.main(["--root", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "has no no_such_module" in message and "make data" in message and content(tmp_path) == {}


# --- CIFAR-10 -------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """(folder, address) of a web server on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path == "/cut.tar.gz":  # promises more than it sends
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                self.wfile.write(b"x" * 1000)
            else:
                super().do_GET()

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        httpd.handle_error = lambda *_: None  # a client that hangs up early is no error of the kit's
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def archive(path, leave_out=(), spoil=()):
    """An archive that looks like CIFAR-10's, with 20 pictures a file; returns the MD5 sums of its files."""
    sums, rng = {}, np.random.RandomState(0)
    with tarfile.open(path, "w:gz") as tar:
        for name in (*(name for name, _ in CIFAR10.train_list), "test_batch", "batches.meta"):
            entry = {"data": rng.randint(0, 256, (20, 3072), np.uint8), "labels": list(range(10)) * 2}
            raw = pickle.dumps({"label_names": list("abcdefghij")} if name == "batches.meta" else entry)
            sums[name] = hashlib.md5(raw).hexdigest()
            raw += b"x" * (name in spoil)
            if name not in leave_out:
                member = tarfile.TarInfo(f"{BATCHES}/{name}")
                member.size = len(raw)
                tar.addfile(member, io.BytesIO(raw))
    return sums


@pytest.fixture
def known(monkeypatch):
    """A function that writes an archive and replaces torchvision's checksums by its own."""

    def write(path, **options):
        sums = archive(path, **options)
        for attribute in ("train_list", "test_list"):
            monkeypatch.setattr(CIFAR10, attribute, [[n, sums[n]] for n, _ in getattr(CIFAR10, attribute)])
        monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
        monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(path.read_bytes()).hexdigest())
        return path

    return write


def cifar10(url, root, monkeypatch):
    monkeypatch.setenv("HELPERS_CIFAR10_URL", url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return prepare.main(["cifar10", "--root", str(root)])


@pytest.mark.parametrize("from_file", [True, False])
def test_cifar10_from_a_mirror(known, server, tmp_path, monkeypatch, capsys, from_file):
    folder, address = server
    path = known(folder / "cifar.tar.gz")
    url = path.as_uri() if from_file else f"{address}/cifar.tar.gz"
    assert cifar10(url, tmp_path / "sets", monkeypatch) == 0
    train, test = (load("cifar10", split, tmp_path / "sets") for split in ("train", "test"))
    assert (len(train), len(test)) == (100, 20) and train.classes == tuple("abcdefghij") and train.flip
    first = np.random.RandomState(0).randint(0, 256, (20, 3072), np.uint8).reshape(20, 3, 32, 32)
    assert np.array_equal(train.images[:20], first) and train.labels[:10].tolist() == list(range(10))
    assert not list(tmp_path.rglob("*.part")) and not list((tmp_path / "sets").rglob("*.tar.gz"))
    assert capsys.readouterr().err == ""


def refused(url, tmp_path, monkeypatch, capsys):
    assert cifar10(url, tmp_path / "sets", monkeypatch) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "HELPERS_CIFAR10_URL" in message and url in message
    assert content(tmp_path / "sets") == {} and not partial(tmp_path / "sets")


@pytest.mark.parametrize("kind", ["truncated", "corrupt", "cut"])
def test_cifar10_damaged_download(known, server, tmp_path, monkeypatch, capsys, kind):
    folder, address = server
    path = known(folder / "corrupt.tar.gz")
    flip_byte(path)
    (folder / "truncated.tar.gz").write_bytes(path.read_bytes()[:5000])
    refused(f"{address}/{kind}.tar.gz", tmp_path, monkeypatch, capsys)


def test_cifar10_without_a_network(tmp_path, server, monkeypatch, capsys):
    for url in (
        "http://127.0.0.1:1/x.tar.gz",
        f"{server[1]}/absent",
        "file:///absent/x.tar.gz",
        "no address",
        "http://",
    ):
        refused(url, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("change", [{"leave_out": ["test_batch"]}, {"spoil": ["data_batch_2"]}])
def test_cifar10_archive_with_other_content(known, tmp_path, monkeypatch, capsys, change):
    refused(known(tmp_path / "cifar.tar.gz", **change).as_uri(), tmp_path, monkeypatch, capsys)


# --- large sets -----------------------------------------------------------------------------


@pytest.fixture
def large(root, tmp_path, monkeypatch):
    """A set whose arrays are mapped into memory; counts the checksums that are compared."""
    monkeypatch.setattr(store, "LARGE", 0)
    compared, check = [], store.check
    monkeypatch.setattr(store, "check", lambda *a: (compared.append(a[0].name), check(*a))[1])
    shutil.copytree(root / "mock", tmp_path / "mock")
    return compared


def test_large_sets_are_mapped_and_equal(large, root, tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of arrays that cannot be written to
        ours = load("mock", "train", tmp_path)
    monkeypatch.setattr(store, "LARGE", 1e12)
    assert torch.equal(ours.images, load("mock", "train", root).images)
    ours.images.zero_()  # this process's memory, not the file
    monkeypatch.setattr(store, "LARGE", 0)
    assert torch.equal(load("mock", "train", tmp_path).images, load("mock", "train", root).images)


def test_checksums_of_large_sets_are_compared_once_and_after_a_change(large, tmp_path):
    load("mock", "train", tmp_path), load("mock", "train", tmp_path)
    assert large == ["train_images.npy", "train_labels.npy"]
    flip_byte(tmp_path / "mock" / "train_images.npy")
    with pytest.raises(DataMissing, match="damaged"):
        load("mock", "train", tmp_path)


# --- load and ensure ------------------------------------------------------------------------


def test_load_and_ensure_refuse_unknown_names(root):
    for call in (lambda: load("svhn", "train", root), lambda: ensure("svhn", root)):
        with pytest.raises(ValueError, match="digits, mock, imagenet-mock, cifar10"):
            call()
    with pytest.raises(ValueError, match="train, test"):
        load("mock", "val", root)


def test_the_error_holds_the_command_that_helps(tmp_path):
    with pytest.raises(DataMissing, match="is not there") as error:
        load("mock", "train", tmp_path / "a b")
    command = str(error.value).splitlines()[-1] + " --images 10"
    subprocess.run(
        command,
        shell=True,
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHON": sys.executable},
        cwd=REPO,
    )
    assert len(load("mock", "train", tmp_path / "a b")) == 10


def test_ensure(tmp_path, capsys):
    with pytest.raises(DataMissing, match="prepare(.sh)?'? cifar10"):
        ensure("cifar10", tmp_path)
    ensure("digits", tmp_path)
    assert capsys.readouterr().out == "" and len(load("digits", "test", tmp_path)) == 360
    make("mock", tmp_path, 10)
    ensure("mock", tmp_path)  # any size will do
    assert len(load("mock", "train", tmp_path)) == 10
