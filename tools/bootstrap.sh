#!/bin/sh
# Makes .venv with the packages of requirements.txt and this project in it; does nothing, at once
# and silently, when .venv already holds them. With the argument `xla` it makes .venv-xla with the
# packages of requirements-xla.txt instead, for the Python version of .venv.
#
#   PYTHON=python3.12    the interpreter to use (default: the first Python 3.10 or later found);
#                        .venv-xla gets that of .venv where there is one
#   HELPERS_NO_UV=1      install with pip, not with the faster uv
set -eu
root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
uv_version=0.13.9

case "${1:-}" in
    '') venv=.venv needs=requirements.txt versions='Python 3.10 or later' newest=99
        size='on Linux a download of 3 GB and 6 GB of disk, mostly CUDA for torch; elsewhere far less' ;;
    xla) venv=.venv-xla needs=requirements-xla.txt versions='Python 3.10 to 3.13' newest=13
        size='a download of 3 GB and 7 GB of disk, mostly CUDA for torch' ;;
    *) echo "bootstrap: error: '$1' is no environment; give 'xla' or nothing." >&2; exit 1 ;;
esac
stamp=$venv/bootstrap.stamp

# A complete environment carries this text. The folder is part of it, since one that was moved or
# copied is broken; contents rather than file times, since a clone's times mean nothing.
wanted() {
    printf '%s\n' "$root"
    cat $needs
    [ $venv = .venv-xla ] || cat pyproject.toml
}

say() { echo "bootstrap: $*" >&2; }
fail() { say "error: $*"; exit 1; }
fits() { "$1" -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $newest))" >/dev/null 2>&1; }
minor() { "$1" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null; }

# The ranks of an XLA run get functions as bytecode from .venv, which only the same version reads.
agrees() {
    [ $venv = .venv ] || [ ! -x .venv/bin/python ] || [ "$(minor .venv/bin/python)" = "$(minor $venv/bin/python)" ]
}

if [ -x $venv/bin/python ] && [ "$(wanted)" = "$(cat "$stamp" 2>/dev/null)" ] && agrees; then
    exit 0
fi

if [ $venv = .venv-xla ] && [ "$(uname -sm)" != 'Linux x86_64' ]; then
    fail "torch_xla has packages for Linux on x86-64 only; this is $(uname -sm). All else works without it."
fi

find_python() {
    if [ $venv = .venv-xla ] && [ -x .venv/bin/python ]; then
        python=.venv/bin/python
        fits $python || fail "there is no torch_xla for $($python --version), which .venv has; it needs $versions." \
            "Make .venv again with one of these: 'make distclean', then 'PYTHON=python3.13 make xla'."
        return
    fi
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || fail "PYTHON is set to '$PYTHON', which does not run or is not $versions." \
            "Set it to a $versions, or leave it unset."
        python=$PYTHON
        return
    fi
    for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if fits "$python"; then return; fi
    done
    fail "found no $versions (tried python3 and python3.14 down to python3.10)." \
        "Install one, or set PYTHON to its path."
}

make_venv() {
    # With --allow-existing or without --clear, both leave the stamp in it alone.
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        "$python" -m venv $venv
    elif [ -n "$uv" ]; then
        uv venv --quiet --seed --allow-existing --python "$python" $venv
    else
        rm -rf $venv
        fail "'$python' cannot make virtual environments: its venv or ensurepip module is missing." \
            "On Debian and Ubuntu run 'apt install python3-venv', then the same command again."
    fi
}

install_with_uv() {
    # uv leaves byte-compiling to the first import, which then takes twice as long.
    "$1" pip install --python $venv/bin/python --compile-bytecode -r $needs || return
    [ $venv = .venv-xla ] || "$1" pip install --python $venv/bin/python --no-deps --no-build-isolation -e .
}

install_with_pip() {
    $venv/bin/python -m pip install -r $needs || return
    [ $venv = .venv-xla ] || $venv/bin/python -m pip install --no-deps --no-build-isolation -e .
}

# Packages found through these would be taken for installed ones.
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1
trap 'say "interrupted; the same command starts again"; exit 130' INT TERM HUP

# Running it, not looking for it: a version manager's stand-in is there even when uv is not.
uv=
if [ -z "${HELPERS_NO_UV:-}" ] && uv --version >/dev/null 2>&1; then uv=uv; fi

if [ -e $venv ]; then
    [ -e "$stamp" ] || fail "$root/$venv exists and was not made by this script." \
        "Move it away or remove it, then run the same command again."
    # Only a whole environment of this folder is worth updating, not one left half installed.
    if [ "$(head -n 1 "$stamp")" != "$root" ] || ! fits $venv/bin/python || ! agrees; then rm -rf $venv; fi
fi
if [ ! -e $venv ]; then
    find_python
    say "making $venv with $("$python" --version)"
    mkdir $venv
    echo unfinished >"$stamp"
    make_venv
fi
echo unfinished >"$stamp"

if [ -z "${HELPERS_NO_UV:-}" ] && [ -z "$uv" ]; then
    if $venv/bin/python -m pip install --quiet --only-binary :all: "uv==$uv_version"; then
        uv=$venv/bin/uv
    else
        say "uv is not to be had here, going on with pip"
    fi
fi
say "installing the packages of $needs, once ($size)"
if [ -n "$uv" ] && install_with_uv "$uv"; then
    :
else
    [ -z "$uv" ] || say "uv could not install the packages (see above), trying pip"
    install_with_pip || fail "the packages could not be installed (see above)." \
        "The unfinished $venv will not be used; run the same command again once the cause is gone."
fi
wanted >"$stamp.new"
mv "$stamp.new" "$stamp"
say "done, $venv is ready"
