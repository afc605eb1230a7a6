"""Check and measure the kit on a machine with one GPU, in one command of less than nine minutes:

    python tools/gpu_check.py --out results/gpu

It needs torch and this checkout, and no network. After each of SECTIONS it writes check.json, records.json and
summary.md, and goes on when one fails or takes too long. `--device cpu --small` runs all of it on a machine without a
GPU, so that on the day nothing but CUDA is new.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
WHOLE = 530  # s
WANTED = ("torchvision", "matplotlib", "pytest", "pandas", "sklearn", "cloudpickle", "triton", "ipywidgets", "nbval")
TESTS = [
    f"tests/{name}"
    for name in ("launcher/test_launch_on_gpu.py", "training/test_training_on_gpu.py", "profile/test_profile_on_gpu.py")
]
START = """
import time
began = time.perf_counter()
import torch
imported = time.perf_counter()
torch.ones(1, device={kind!r}).sum().item()
print(imported - began, time.perf_counter() - imported)
"""


# -- sections: each returns what goes into the file ---------------------------------------------


def facts(check):
    """What is here."""
    import torch

    from helpers import device, releases

    here = device.machine(check.kind)
    found = {
        "machine": here.as_dict(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version,
        "missing": [name for name in WANTED if importlib.util.find_spec(name) is None],
        "gpus": releases.gpus(),
        "formats, speed over fp32": device.dtypes(check.kind),
    }
    if check.kind == "cuda":
        about = torch.cuda.get_device_properties(0)
        found |= {
            "memory": about.total_memory,
            "capability": [about.major, about.minor],
            "nccl": torch.cuda.nccl.version(),
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


def start(check):
    """How long the first launch takes, beside making a context in a process of its own."""
    alone = subprocess.run(
        [sys.executable, "-c", START.format(kind=check.kind)], capture_output=True, text=True, timeout=check.left()
    )
    code = (
        "import time, helpers\nfrom benchmarks.cases import gpu\nbegan = time.perf_counter()\n"
        "helpers.launch(gpu.touch, 1); print(time.perf_counter() - began)\nbegan = time.perf_counter()\n"
        "helpers.launch(gpu.touch, 1); print(time.perf_counter() - began)"
    )
    launched = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=check.left())
    names = ("import torch (s)", "context (s)", "first launch (s)", "second launch (s)")
    values = [*alone.stdout.split(), *launched.stdout.split()]
    if len(values) < len(names):
        raise RuntimeError((alone.stderr + launched.stderr)[-2000:])
    return dict(zip(names, map(float, values), strict=True))


def tests(check):
    """The tests marked `gpu`: those that did not pass, and why. All that they print is in tests.txt."""
    if importlib.util.find_spec("pytest") is None:
        return {"left out": "there is no pytest here"}
    output, found = check.out / "tests.txt", {"passed": 0, "skipped": {}, "failures": {}}
    options = ("-v", "-rA", "-m", "gpu", "--noconftest", "-o", "addopts=", "-p", "no:cacheprovider", "--tb=short")
    environment = {**os.environ, "HELPERS_GPU_TESTS": check.kind, "PYTHONUNBUFFERED": "1"}
    with output.open("w", encoding="utf-8") as file:
        try:
            subprocess.run(
                [sys.executable, "-m", "pytest", *options, *TESTS[: check.few(None, 1)]],
                stdout=file,
                stderr=file,
                cwd=ROOT,
                env=environment,
                timeout=check.left(),
            )
        except subprocess.TimeoutExpired as error:
            found["failures"]["stopped"] = f"after {error.timeout:.0f} s"
    text = output.read_text(encoding="utf-8")
    results = dict(re.findall(r"^(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)", text, re.MULTILINE))
    for test, result in results.items():
        found["passed"] += result == "PASSED"
        if result != "PASSED":
            why = re.search(rf"^(?:FAILED|ERROR) {re.escape(test)} - (.*)", text, re.MULTILINE)
            found["skipped" if result == "SKIPPED" else "failures"][test] = why[1] if why else result
    return found


def ladder(check):
    """One model, one rung after the other; what fails is noted. In the order of what one would give up last."""
    from benchmarks.cases import gpu

    best = dict(precision="bf16-mixed", channels_last=True)
    rungs = {
        "fp32": dict(model=gpu.exact),
        "TF32": dict(model=gpu.tf32),
        "bf16": dict(model=gpu.tf32, precision="bf16-mixed"),
        "bf16, channels last": dict(model=gpu.tf32, **best),
        "bf16, channels last, compiled": dict(model=gpu.tf32, **best, compiler="inductor"),
        "the same, CUDA graphs": dict(model=gpu.graphed, **best, compiler="inductor"),
        "bf16, channels last, workers": dict(
            model=gpu.tf32, **best, input_path="workers", num_workers=check.few(14, 2)
        ),
        "bf16, auto": dict(model=gpu.tf32, precision="bf16-mixed", compiler="auto", steps=check.few(200, 60)),
    }
    return {"rungs": {name: check.rung(name, **rung) for name, rung in rungs.items()}}


def peak(check):
    """What the device reaches in products of matrices, and what is published of it."""
    import torch

    from benchmarks import peak as peaks
    from helpers.costmodel import published

    torch.set_float32_matmul_precision("highest")
    sizes = (256,) if check.small else None
    found = {name: peaks.matmul_peak(getattr(torch, name), check.kind, sizes) for name in ("float32", "bfloat16")}
    name = torch.cuda.get_device_name() if check.kind == "cuda" else ""
    known = {key: of["operations"] for key, of in published.load("devices")["devices"].items() if key[:4] in name}
    of_image = peaks.flops_of_image(check.model, 32)
    rates = {key: rung["images/s"] for key, rung in check.rungs().items() if "images/s" in rung}
    best = found["bfloat16"]["median"]
    return {
        "measured": found,
        "published": known,
        "operations of an image": of_image,
        "share of the measured bf16 peak": {key: of_image * rate / best for key, rate in rates.items()},
        "share of the published": {
            key: {n: of_image * rate / at for n, at in known.items()} for key, rate in rates.items()
        },
    }


def loop(check):
    """What the kit's loop adds to one by hand; and what waiting for the device after each step costs."""
    import helpers
    from benchmarks.cases import gpu

    config = check.config(model=gpu.tf32, steps=check.few(120, 9), precision="bf16-mixed", channels_last=True)
    spent = {
        f"{'waits' if wait else 'does not wait'} after each step (s)": helpers.launch(
            gpu.by_hand, 1, config, config.warmup_steps, wait, env=check.env, timeout=check.left()
        )[0]
        for wait in (True, False)
    }
    kit = check.rungs().get("bf16, channels last", {}).get("step (s)")
    waits, runs_on = spent.values()
    return {**spent, "kit": kit, "kit / a loop that waits": kit and kit / waits, "waiting costs": waits / runs_on - 1}


SECTIONS = {facts: 40, start: 60, ladder: 250, peak: 30, loop: 50, tests: 300}  # s, at most, as long as WHOLE lasts


class Check:
    """What was asked for, what was found, and how much time is left."""

    def __init__(self, options):
        self.kind, self.small, self.out = options.device, options.small, Path(options.out).resolve()
        self.results = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.ends = time.monotonic() + options.seconds
        self.section_ends, self.found = self.ends, {}
        self.model = "resnet8" if self.small else "resnet50"
        self.env = {"HELPERS_DEVICE": self.kind, "GPU_CHECK_MODEL": self.model}
        os.environ.update(self.env, HELPERS_RESULTS=str(self.results), PYTHONPATH=str(ROOT), HELPERS_PROGRESS="plain")

    def left(self, most=1e9):
        """Seconds that may still be used; raises TimeoutError if that is none."""
        found = min(most, self.section_ends - time.monotonic())
        if found < 1:
            raise TimeoutError("no time is left for it")
        return found

    def few(self, many, few):
        """The one or the other of two numbers or settings."""
        return few if self.small else many

    def rungs(self):
        """What the ladder found, as far as it got."""
        return self.found.get("ladder", {}).get("rungs", {})

    def config(self, **settings):
        """Of a run of the ladder."""
        from benchmarks.cases import gpu
        from helpers import RunConfig

        few = dict(global_batch=4, steps=9, data=gpu.few_images, threads=1)
        size = self.few(dict(global_batch=256, steps=150, data=gpu.cifar_shaped), few)
        return RunConfig(**{**size, "lr": 0.01, "evaluate": False, "device": self.kind, **settings})

    def rung(self, name, **settings):
        """Train it and say what came out, or why nothing did."""
        from helpers.comparison.run import run

        try:
            record = run(self.config(**settings, label=name), timeout=self.left(self.few(100, 1e3)))
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:2000]}
        measured = record["measured"]
        if not measured["step_time_s"]:
            return {"failed": f"too few steps to time; {measured['note']}"}
        step, rate, wait = (measured[key]["median"] for key in ("step_time_s", "images_per_s", "input_wait_s"))
        losses, compiler = measured["samples"]["loss"], measured["compiler"] or {}
        return {
            "step (s)": step,
            "images/s": rate,
            "epoch of 50,000 (s)": 50_000 / rate,
            "wait for input": wait / step,
            "peak memory": measured["peak_memory_bytes"][0],
            "first, last loss": [losses[0], losses[-1]],
            "parts (s)": measured["parts_s"],
            "plan": compiler.get("plan"),
            "compile (s)": compiler.get("compile_s"),
            "note": measured["note"],
            "record": record["run_id"],
        }

    def run(self, section, most):
        """Run one section and write everything down."""
        began, name = time.monotonic(), section.__name__
        self.section_ends = min(self.ends, began + most * self.few(1, 10))  # a small check may meet a slow machine
        print(f"{name} …", flush=True)
        try:
            self.found[name] = section(self)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.found[name] = {"failed": why, "traceback": traceback.format_exc()[-4000:]}
        self.found[name]["seconds"] = round(time.monotonic() - began, 1)
        (self.out / "check.json").write_text(json.dumps(self.found, indent=1, default=str), encoding="utf-8")
        records = [json.loads(path.read_text()) for path in sorted(self.results.glob("runs/*.json"))]
        (self.out / "records.json").write_text(json.dumps({"records": records}), encoding="utf-8")  # few files: one
        (self.out / "summary.md").write_text(summary(self.found), encoding="utf-8")


def summary(found):
    """The same for people: what failed first."""
    lines = []
    for name, of in found.items():
        lines += [f"## {name} ({of['seconds']} s)", "", *_lines(of, ""), ""]
    return "\n".join(lines)


def _lines(of, indent):
    for key, value in of.items():
        if isinstance(value, dict):
            yield f"{indent}- {key}:"
            yield from _lines(value, indent + "  ")
        elif key not in ("seconds", "traceback"):
            yield f"{indent}- {key}: {value:.4g}" if isinstance(value, float) else f"{indent}- {key}: {value}"


def main(arguments=None):
    """Run all sections; the exit status is 1 if one of them, a test or a rung has failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "results/gpu"), help="folder for what is found")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a small model and few steps, to try the command")
    parser.add_argument("--seconds", type=float, default=WHOLE, help=f"for all sections together (default: {WHOLE})")
    names = [section.__name__ for section in SECTIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="sections (default: all)")
    options = parser.parse_args(arguments)
    check = Check(options)
    check.out.mkdir(parents=True, exist_ok=True)
    for section, most in SECTIONS.items():
        if section.__name__ in options.only:
            check.run(section, most)
    print(summary(check.found))
    tests_failed = check.found.get("tests", {}).get("failures")
    return int('"failed": "' in json.dumps(check.found, default=str) or bool(tests_failed))


if __name__ == "__main__":
    sys.exit(main())
