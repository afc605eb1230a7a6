"""Which torch an environment gets: for tools/bootstrap.sh, and for notebooks on a hosted service.

It prints constraints for pip (none where the versions of requirements.txt will do) and says why on stderr. It needs
Python 3.8 and nothing installed:

    python tools/choose_torch.py                 what this machine's NVIDIA driver can run
    python tools/choose_torch.py --keep PYTHON   the torch that is installed here, which is that of PYTHON
    python tools/choose_torch.py --release 2.6   that release
    python tools/choose_torch.py --install       install the kit into this Python's environment, whose torch stays

Drivers: https://docs.nvidia.com/deploy/cuda-compatibility (CUDA 12 wants 525, CUDA 13 wants 580). PyPI's torch comes
with CUDA 12 up to 2.10 and with CUDA 13 since 2.11; cards of compute capability 7.0 (V100) are in those up to 2.10,
older ones in those up to 2.7 (https://github.com/pytorch/pytorch/issues/157517 and 172352).
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
spec = importlib.util.spec_from_file_location("releases", os.path.join(ROOT, "helpers", "releases.py"))
releases = importlib.util.module_from_spec(spec)  # the package itself cannot be imported yet
spec.loader.exec_module(releases)

NEWEST_WITH = (  # (oldest driver, least compute capability, newest release; "" is that of requirements.txt)
    (580, 7.5, ""),
    (525, 7.0, "2.10"),
    (525, 5.0, "2.7"),
)
LEFT_OUT = "# no torchvision"  # among constraints; read by tools/bootstrap.sh, too


def kept(python):
    """Constraints that keep the torch and torchvision seen here, which are those of `python`, and a sentence on it."""
    torch = releases.version_of("torch")
    if torch is None:
        return None
    if releases.number(torch) < releases.number(releases.OLDEST):
        raise releases.UnfitTorch(
            f"{python} has torch {torch}; the kit needs {releases.OLDEST} or newer. Upgrade it there "
            f"('{python} -m pip install --upgrade torch torchvision'), or leave PYTHON and HERE out."
        )
    found = {"torch": torch, "torchvision": releases.version_of("torchvision")}
    lines = [f"{name}=={version}" for name, version in found.items() if version]
    why = f"using torch {torch} of {python}, which stays as it is; only what is missing is installed"
    if releases.without_cuda(torch, found["torchvision"]):
        lines.append(LEFT_OUT)
        why += "; torchvision is not, since PyPI's wants CUDA"
    return lines, why


def for_driver(found):
    """Constraints for these GPUs (see `gpus`), and the sentence that says why."""
    if not found or os.environ.get("HELPERS_DEVICE") == "cpu":
        return [], ""
    driver = min(int(gpu[1].split(".")[0]) for gpu in found)
    capability = min((gpu[2] for gpu in found if gpu[2]), default=99.0)
    here = f"{found[0][0]} with driver {found[0][1]}"
    for oldest_driver, least, release in NEWEST_WITH:
        if driver >= oldest_driver and capability >= least:
            if not release:
                return [], f"{here} runs the newest torch"
            return [f"torch=={release}.*"], f"{here} runs torch {release}, not the newest, so that is installed"
    driver, least, _ = NEWEST_WITH[-1]
    raise releases.UnfitTorch(
        f"no torch from {releases.OLDEST} on, as PyPI has it, runs on {here}: it needs driver {driver} and compute "
        f"capability {least}. Update the driver, or give a Python with a torch built for it: make run "
        f"PYTHON=/path/to/python. {releases.ON_CPU}"
    )


def install(constraints):
    """Install this clone, and what it needs, into the environment of this Python; returns pip's exit status."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints))
        file.flush()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        kit = ROOT if LEFT_OUT in constraints else f"{ROOT}[vision]"
        return subprocess.call([*pip, "--constraint", file.name, "--editable", kit])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="PYTHON")
    parser.add_argument("--release")
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    if options.install:
        options.keep = sys.executable
    try:
        if options.release:
            if releases.number(options.release) < releases.number(releases.OLDEST):
                raise releases.UnfitTorch(
                    f"torch {options.release} is older than {releases.OLDEST}, the oldest that the kit runs on"
                )
            constraints, why = [f"torch=={options.release}.*"], ""
        else:
            constraints, why = (options.keep and kept(options.keep)) or for_driver(releases.gpus())
    except releases.UnfitTorch as error:
        raise SystemExit(f"bootstrap: error: {error}") from None
    if why:
        print(f"bootstrap: {why}", file=sys.stderr)
    if options.install:
        size = "0.3 GB at most, a minute" if releases.version_of("torch") else "3 GB, mostly CUDA for torch"
        print(f"bootstrap: installing the kit and what it needs ({size})", file=sys.stderr, flush=True)
        status = install(constraints)
        print(f"bootstrap: {'pip failed, see above' if status else 'the kit is installed'}", file=sys.stderr)
        raise SystemExit(status)
    for line in constraints:
        print(line)


if __name__ == "__main__":
    main()
