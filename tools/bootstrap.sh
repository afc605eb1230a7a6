#!/bin/sh
# Makes .venv with the packages of requirements.txt and this project in it; does nothing, at once
# and silently, when .venv already holds them. With the argument `xla` it makes .venv-xla with the
# packages of requirements-xla.txt instead, for the Python version of .venv; with `keras`, .venv-keras with
# those of requirements-keras.txt, likewise; with `mxnet`, .venv-mxnet with those of
# requirements-mxnet.txt, for Python 3.8; with `site`, .venv-site with those of requirements-site.txt, which build the
# static site; with `torch 2.6`, .venv-torch-2.6 with that release of torch and the oldest
# versions that pyproject.toml allows; with `newest`, .venv-newest with the newest, looked for once a week.
#
#   PYTHON=python3.12    the interpreter to use (default: the first Python 3.10 or later found). If it has
#                        torch 2.6 or newer, .venv uses that torch, unchanged, and holds only what is missing.
#                        .venv-xla and .venv-keras get the interpreter of .venv where there is one, .venv-mxnet
#                        a Python 3.8
#   HERE=1               the same with the Python of the active environment (venv or conda)
#   HELPERS_NO_UV=1      install with pip, not with the faster uv
#   HELPERS_DEVICE=cpu   install torch without CUDA although there is an NVIDIA GPU; where there is none, that is what
#                        gets installed anyway
#   PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels   install without a network, from the folder that `make wheels` filled
set -eu
root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
uv_version=0.13.9

# What the download and the environment take, in GB: `needed` is looked for on the disk.
case "${1:-}" in
    '') venv=.venv needs=requirements.txt versions='Python 3.10 or later' oldest=10 newest=99 download=3 needed=7 ;;
    torch) [ -n "${2:-}" ] || { echo "bootstrap: error: give the release of torch as well, like 2.6" >&2; exit 1; }
        venv=.venv-torch-$2 needs=pyproject.toml versions='Python 3.10 or later' oldest=10 newest=99 download=3 needed=6 ;;
    newest) venv=.venv-newest needs=pyproject.toml versions='Python 3.10 or later' oldest=10 newest=99 download=3 needed=6 ;;
    xla) venv=.venv-xla needs=requirements-xla.txt versions='Python 3.10 to 3.13' oldest=10 newest=13 download=3 needed=7 ;;
    keras) venv=.venv-keras needs=requirements-keras.txt versions='Python 3.10 to 3.13' oldest=10 newest=13 download=3 needed=7 ;;
    mxnet) venv=.venv-mxnet needs=requirements-mxnet.txt versions='Python 3.8' oldest=8 newest=8 download=0.9 needed=2 ;;
    site) venv=.venv-site needs=requirements-site.txt versions='Python 3.11 or later' oldest=11 newest=99 download=0.1 needed=1 ;;
    *) echo "bootstrap: error: '$1' is no environment; give 'xla', 'keras', 'mxnet', 'site', 'newest', 'torch' with a release, or nothing." >&2; exit 1 ;;
esac
stamp=$venv/bootstrap.stamp
constraints=$venv/constraints.txt  # of torch, where the pins will not do
lender=$venv/lender  # the Python whose torch .venv uses


# A complete environment carries this text. The folder is part of it, since one that was moved or
# copied is broken; contents rather than file times, since a clone's times mean nothing.
wanted() {
    printf '%s\n' "$root"
    cat $needs
    case $venv in
        .venv) cat pyproject.toml tools/choose_torch.py helpers/releases.py ;;
        .venv-newest) date +%G-%V ;;
    esac
}

say() { echo "bootstrap: $*" >&2; }
fail() { say "error: $*"; exit 1; }
fits() { "$1" -c "import sys; sys.exit(not (3, $oldest) <= sys.version_info[:2] <= (3, $newest))" >/dev/null 2>&1; }
minor() { "$1" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null; }

# Ranks in .venv-xla and .venv-keras get functions as bytecode from .venv, which only the same version reads.
follows() { [ $venv = .venv-xla ] || [ $venv = .venv-keras ]; }
agrees() {
    ! follows || [ ! -x .venv/bin/python ] || [ "$(minor .venv/bin/python)" = "$(minor $venv/bin/python)" ]
}

# The interpreter that was asked for by name, if it has a torch to lend.
lends=
if [ $venv = .venv ]; then
    if [ -n "${HERE:-}" ] && [ -z "${PYTHON:-}" ]; then
        PYTHON=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
        if [ -n "$PYTHON" ]; then PYTHON=$PYTHON/bin/python; else PYTHON=python3; fi
    fi
    if [ -n "${PYTHON:-}" ] && fits "$PYTHON"; then
        lends=$("$PYTHON" -c 'import importlib.util as u, sys; print(sys.executable if u.find_spec("torch") else "")')
        case $lends in "$root/$venv/"*) lends=$(cat $lender 2>/dev/null || true) ;; esac
    fi
fi
same_lender() { [ -z "${PYTHON:-}" ] || [ "$lends" = "$(cat $lender 2>/dev/null)" ]; }

if [ -x $venv/bin/python ] && same_lender && [ "$(wanted)" = "$(cat "$stamp" 2>/dev/null)" ] && agrees; then
    exit 0
fi

if [ $venv = .venv-xla ] && [ "$(uname -sm)" != 'Linux x86_64' ]; then
    fail "torch_xla has packages for Linux on x86-64 only; this is $(uname -sm). All else works without it."
fi
if [ $venv = .venv-mxnet ] && [ "$(uname -sm)" != 'Linux x86_64' ]; then
    fail "these packages of MXNet are for Linux on x86-64 only; this is $(uname -sm). All else works without it."
fi

if [ $venv = .venv-keras ] && [ "$(uname -sm)" != 'Linux x86_64' ]; then
    fail "this TensorFlow was seen to work on Linux on x86-64 only; this is $(uname -sm). All else works without it."
fi

# No system brings Python 3.8 any more, so it is looked for where version managers keep it, too.
find_python_3_8() {
    for python in python3.8 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.8.*/bin/python3.8; do
        if fits "$python"; then return; fi
    done
    for manager in "$uv" .venv/bin/uv; do
        [ -n "$manager" ] && "$manager" --version >/dev/null 2>&1 || continue
        "$manager" python install 3.8 || say "uv could not fetch Python 3.8 (see above)"
        if python=$("$manager" python find 3.8 2>/dev/null) && fits "$python"; then return; fi
    done
    fail "found no $versions, the last that both MXNet 1.9.1 and its torch run on (tried python3.8, pyenv and uv)." \
        "Get one by 'uv python install 3.8' (uv: 'pip install uv') or 'pyenv install 3.8', or set PYTHON to its path." \
        "All else works without it."
}

find_python() {
    if follows && [ -x .venv/bin/python ]; then
        python=.venv/bin/python what=torch_xla
        [ $venv = .venv-xla ] || what=TensorFlow
        fits $python || fail "there is no $what for $($python --version), which .venv has; it needs $versions." \
            "Make .venv again with one of these: 'make distclean', then 'PYTHON=python3.13 make ${venv#.venv-}'."
        return
    fi
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || fail "PYTHON is set to '$PYTHON', which does not run or is not $versions." \
            "Set it to a $versions, or leave it unset."
        python=$PYTHON
        return
    fi
    if [ $venv = .venv-mxnet ]; then find_python_3_8; return; fi
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

# One installer, uv where it is to be had. It leaves byte-compiling to the first import, which then takes twice as long.
install() {
    if [ -n "$uv" ]; then
        set -- "$uv" pip install --python $venv/bin/python --compile-bytecode $no_index
    else
        set -- $venv/bin/python -m pip install
    fi
    if [ -s $constraints ]; then
        # What builds the project: torch does not always bring it along, and a new environment may have an older one.
        "$@" 'setuptools>=77.0.3' -c $constraints || return
        case $venv in
            .venv-torch*) [ -z "$uv" ] || set -- "$@" --resolution lowest-direct ;;
            .venv-newest) set -- "$@" --upgrade ;;
        esac
        "$@" --no-build-isolation -c $constraints -e ".[$extras]"
    elif [ $venv = .venv ]; then
        if [ -n "$without_cuda" ]; then install_for_cpu "$@"; else "$@" -r $needs; fi || return
        "$@" --no-deps --no-build-isolation -e .
    else
        "$@" -r $needs
    fi
}

# PyTorch's index has torch without CUDA, which uv finds. Without that index it is PyPI's torch, which cannot be imported
# without CUDA's libraries, but without triton. The list is complete, so nothing comes along that is not on it.
install_for_cpu() {
    if [ -n "$uv" ] && [ -z "$no_index" ]; then
        grep -Ev '^(nvidia-|cuda-|triton)' $needs >$venv/pins.txt
        UV_HTTP_RETRIES=0 "$@" --torch-backend=cpu -r $venv/pins.txt && return
        say "torch without CUDA could not be fetched (see above), so it comes from PyPI, with CUDA: 3 GB"
    fi
    [ -z "$fresh" ] || has_room 6
    grep -v '^triton' $needs >$venv/pins.txt
    "$@" --no-deps -r $venv/pins.txt
}

has_room() {
    free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1000000)}')
    [ "$free" -ge "$1" ] || fail "$root has $free GB of free disk, and $venv needs $1 GB." \
        "Free some, or put a clone where there is more."
}

# Packages of the lender are seen through a .pth file: a plain `venv --system-site-packages` would not see those of
# another virtual environment.
borrow() {
    site=$("$lends" -c 'import sys, sysconfig
print(sysconfig.get_path("purelib", "posix_prefix", {"base": sys.argv[1]}))' "$root/$venv")
    mkdir -p "$site"
    "$lends" -c 'import sys
for path in sys.path:
    if path.endswith(("site-packages", "dist-packages")):
        print(f"import site; site.addsitedir({path!r})")' >"$site/lender.pth"
    echo "$lends" >$lender
    # JupyterLab looks for its extensions, such as widgets, beside the Python that it runs on.
    mkdir -p $venv/etc/jupyter
    "$lends" -c 'import json, sys
print(json.dumps({"LabApp": {"extra_labextensions_path": [sys.prefix + "/share/jupyter/labextensions"]}}))' \
        >$venv/etc/jupyter/jupyter_lab_config.json
}

# Packages found through these would be taken for installed ones.
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1
trap 'say "interrupted; the same command starts again"; exit 130' INT TERM HUP

fresh=  # whether the environment is made anew
# What torch is for: on macOS PyPI's has no CUDA anyway.
without_cuda=
if [ $venv = .venv ] && [ -z "$lends" ] && [ "$(uname -s)" != Darwin ]; then
    if [ "${HELPERS_DEVICE:-}" = cpu ] || ! nvidia-smi >/dev/null 2>&1; then without_cuda=yes needed=2; fi
fi

# Running it, not looking for it: a version manager's stand-in is there even when uv is not.
uv=
if [ -z "${HELPERS_NO_UV:-}" ] && uv --version >/dev/null 2>&1; then uv=uv; fi

if [ -e $venv ]; then
    [ -e "$stamp" ] || fail "$root/$venv exists and was not made by this script." \
        "Move it away or remove it, then run the same command again."
    # Only a whole environment of this folder is worth updating, not one left half installed.
    if [ "$(head -n 1 "$stamp")" != "$root" ] || ! fits $venv/bin/python || ! agrees || ! same_lender; then
        rm -rf $venv
    fi
fi
if [ ! -e $venv ]; then
    find_python
    say "making $venv with $("$python" --version)"
    [ $venv != .venv ] || [ -z "${PYTHON:-}" ] || [ -n "$lends" ] || say "$PYTHON has no torch, so one is installed"
    [ -z "$lends" ] || needed=1
    has_room $needed
    fresh=yes
    mkdir $venv
    echo unfinished >"$stamp"
    make_venv
    [ -z "$lends" ] || borrow
fi
echo unfinished >"$stamp"
case $venv in
    .venv) $venv/bin/python tools/choose_torch.py $([ ! -e $lender ] || echo --keep "$(cat $lender)") >$constraints ;;
    .venv-torch*) $venv/bin/python tools/choose_torch.py --release "$2" >$constraints ;;
    .venv-newest) { echo '# what the driver can run'; $venv/bin/python tools/choose_torch.py; } >$constraints ;;
esac
# uv does not look into the lender's packages; pip does.
[ ! -e $lender ] || HELPERS_NO_UV=1 uv=
extras=vision,test
if grep -q '^# no torchvision' $constraints 2>/dev/null; then extras=test; fi
no_index=  # uv reads no variable for it
size="a download of $download GB"
if [ -n "$without_cuda" ]; then size="a download of 0.6 GB, torch without CUDA: there is no NVIDIA GPU to use"; fi
if [ -e $lender ]; then size='what is missing beside torch: at most 0.3 GB'; fi
if [ -n "${PIP_NO_INDEX:-}" ]; then
    no_index=--no-index
    export UV_FIND_LINKS="${PIP_FIND_LINKS:-}"
    size="no download, from ${PIP_FIND_LINKS:-the folders that pip is set to}"
fi

if [ -z "${HELPERS_NO_UV:-}" ] && [ -z "$uv" ]; then
    if $venv/bin/python -m pip install --quiet --only-binary :all: "uv==$uv_version"; then
        uv=$venv/bin/uv
    else
        say "uv is not to be had here, going on with pip"
    fi
fi
list=$needs
[ ! -s $constraints ] || list=pyproject.toml
say "installing the packages of $list, once ($size)"
install || fail "the packages could not be installed (see above)." \
    "The unfinished $venv will not be used; run the same command again once the cause is gone."
wanted >"$stamp.new"
mv "$stamp.new" "$stamp"
say "done, $venv is ready"
