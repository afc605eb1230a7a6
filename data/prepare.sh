#!/bin/sh
# Makes or downloads data sets; `data/prepare.sh --help` tells which and how.
# Uses the project's own environment when there is one, else $PYTHON, else python3.
set -eu
repo=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)

if [ -x "$repo/.venv/bin/python" ]; then
    python=$repo/.venv/bin/python
else
    python=${PYTHON:-python3}
fi
export PYTHONPATH="$repo${PYTHONPATH:+:$PYTHONPATH}"
# Python 3.11 and later: a folder called helpers where this is typed is not taken for ours.
export PYTHONSAFEPATH=1

if ! problem=$("$python" -c 'import sys; assert sys.version_info >= (3, 10), "too old"; import helpers' 2>&1); then
    echo "error: '$python' cannot run the project ($(printf '%s\n' "$problem" | tail -n 1)): run" \
        "'make data' in $repo, which installs what is needed, or set PYTHON to a Python 3.10 or" \
        "later that has it" >&2
    exit 1
fi
exec "$python" -m helpers.data.prepare "$@"
