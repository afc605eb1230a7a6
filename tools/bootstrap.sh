#!/bin/sh
# Makes .venv with the packages of requirements.txt and this project in it; does nothing, at once
# and silently, when .venv already holds them.
#
#   PYTHON=python3.12    the interpreter to use (default: the first Python 3.10 or later found)
#   HELPERS_NO_UV=1      install with pip, not with the faster uv
set -eu
root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
stamp=.venv/bootstrap.stamp
uv_version=0.13.9

# A complete .venv carries this text. The folder is part of it, since a .venv that was moved or
# copied is broken; contents rather than file times, since a clone's times mean nothing.
wanted() { printf '%s\n' "$root"; cat requirements.txt pyproject.toml; }

if [ -x .venv/bin/python ] && [ "$(wanted)" = "$(cat "$stamp" 2>/dev/null)" ]; then
    exit 0
fi

say() { echo "bootstrap: $*" >&2; }
fail() { say "error: $*"; exit 1; }
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        recent "$PYTHON" || fail "PYTHON is set to '$PYTHON', which does not run or is older than 3.10." \
            "Set it to a Python 3.10 or later, or leave it unset."
        python=$PYTHON
        return
    fi
    for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if recent "$python"; then return; fi
    done
    fail "found no Python 3.10 or later (tried python3 and python3.14 down to python3.10)." \
        "Install one, or set PYTHON to its path."
}

make_venv() {
    # With --allow-existing or without --clear, both leave the stamp in .venv alone.
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        "$python" -m venv .venv
    elif [ -n "$uv" ]; then
        uv venv --quiet --seed --allow-existing --python "$python" .venv
    else
        rm -rf .venv
        fail "'$python' cannot make virtual environments: its venv or ensurepip module is missing." \
            "On Debian and Ubuntu run 'apt install python3-venv', then the same command again."
    fi
}

install_with_uv() {
    # uv leaves byte-compiling to the first import, which then takes twice as long.
    "$1" pip install --python .venv/bin/python --compile-bytecode -r requirements.txt &&
        "$1" pip install --python .venv/bin/python --no-deps --no-build-isolation -e .
}

install_with_pip() {
    .venv/bin/python -m pip install -r requirements.txt &&
        .venv/bin/python -m pip install --no-deps --no-build-isolation -e .
}

# Packages found through these would be taken for installed ones.
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1
trap 'say "interrupted; the same command starts again"; exit 130' INT TERM HUP

# Running it, not looking for it: a version manager's stand-in is there even when uv is not.
uv=
if [ -z "${HELPERS_NO_UV:-}" ] && uv --version >/dev/null 2>&1; then uv=uv; fi

if [ -e .venv ]; then
    [ -e "$stamp" ] || fail "$root/.venv exists and was not made by this script." \
        "Move it away or remove it, then run the same command again."
    # Only a whole environment of this folder is worth updating, not one left half installed.
    if [ "$(head -n 1 "$stamp")" != "$root" ] || ! recent .venv/bin/python; then rm -rf .venv; fi
fi
if [ ! -e .venv ]; then
    find_python
    say "making .venv with $("$python" --version)"
    mkdir .venv
    echo unfinished >"$stamp"
    make_venv
fi
echo unfinished >"$stamp"

if [ -z "${HELPERS_NO_UV:-}" ] && [ -z "$uv" ]; then
    if .venv/bin/python -m pip install --quiet --only-binary :all: "uv==$uv_version"; then
        uv=.venv/bin/uv
    else
        say "uv is not to be had here, going on with pip"
    fi
fi
say "installing the packages of requirements.txt, once" \
    "(on Linux a download of 3 GB and 6 GB of disk, mostly CUDA for torch; elsewhere far less)"
if [ -n "$uv" ] && install_with_uv "$uv"; then
    :
else
    [ -z "$uv" ] || say "uv could not install the packages (see above), trying pip"
    install_with_pip || fail "the packages could not be installed (see above)." \
        "The unfinished .venv will not be used; run the same command again once the cause is gone."
fi
wanted >"$stamp.new"
mv "$stamp.new" "$stamp"
say "done, .venv is ready"
