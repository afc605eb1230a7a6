#!/bin/sh
# Builds BVLC Caffe with its Python interface (CPU only) into .venv-caffe, which sees all packages of
# .venv; does nothing, at once and silently, when that is there. Works on Debian and what is made of it:
# source, libraries and Boost.Python are Debian's, the last of which fits Debian's version of Python only.
#
#   CAFFE_SOURCE=FILE    the source, downloaded already: caffe_1.0.0+git20180821.99bd997.orig.tar.gz of
#                        Debian's source package caffe (default: fetched from the mirror that apt uses)
set -eu
root=$(CDPATH='' cd -P -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
venv=.venv-caffe
stamp=$venv/caffe.stamp
sha256=e0eb3f06794f7402c77b7dec8e8480273ee1a1bb192e9122b621a69d4147ad0c
packages='build-essential cmake libboost-filesystem-dev libboost-python-dev libboost-system-dev
    libboost-thread-dev libgflags-dev libgoogle-glog-dev libhdf5-dev liblmdb-dev libopenblas-dev
    libprotobuf-dev protobuf-compiler python3-dev'

say() { echo "caffe: $*" >&2; }
fail() { say "error: $*"; exit 1; }
of_python() { .venv/bin/python -c "import sys, sysconfig; print($1)"; }

# As in bootstrap.sh: the folder is part of it, and so is the Python that Caffe was compiled for.
wanted() {
    printf '%s\n' "$root"
    of_python sys.version
    cat tools/caffe.sh
}

if [ -x $venv/bin/python ] && [ "$(wanted)" = "$(cat $stamp 2>/dev/null)" ]; then exit 0; fi
if [ -e $venv ] && [ ! -e $stamp ]; then
    fail "$root/$venv exists and was not made by this script. Move it away or remove it, then run the same again."
fi

missing() {
    # shellcheck disable=SC2086
    dpkg-query -W -f '${Status} ${Package}\n' $packages 2>/dev/null | awk '$3 == "installed" {print $4}' >"$work/here"
    printf '%s\n' $packages | grep -vxF -f "$work/here" || true
}

install_packages() {
    command -v apt-get >/dev/null || fail "this needs Debian or a system made of it. The notebook shows a recorded run."
    lacking=$(missing | tr '\n' ' ')
    [ -n "$lacking" ] || return 0
    [ "$(id -u)" = 0 ] || fail "packages of the system are missing. Run" \
        "'sudo apt-get install --no-install-recommends $lacking', then the same command again."
    say "installing packages of the system: $lacking"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $lacking >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; fail "the packages could not be installed (see above)."; }
}

check_python() {
    minor=$(of_python '"%d%d" % sys.version_info[:2]')
    for library in /usr/lib/*/libboost_python"$minor".so; do
        [ ! -e "$library" ] || return 0
    done
    fail ".venv has $(.venv/bin/python --version), but the system's Boost.Python is for another version. Make .venv" \
        "with the system's Python: 'make distclean', then 'PYTHON=/usr/bin/python3 make caffe'."
}

# The last release of Debian with the source package is bullseye; apt checks its signature.
fetch_source() {
    if [ -n "${CAFFE_SOURCE:-}" ]; then
        cp "$CAFFE_SOURCE" "$work/caffe.orig.tar.gz"
        return
    fi
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sed q)
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bullseye main" >"$work/sources.list"
    mkdir -p "$work/parts" "$work/lists/partial" "$work/cache/archives/partial"
    set -- -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts="$work/parts" \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)"
    { (cd "$work" && apt-get "$@" update && apt-get "$@" source --download-only caffe) >&2 &&
        mv "$work"/caffe_*.orig.tar.gz "$work/caffe.orig.tar.gz"; } ||
        fail "Debian's source package caffe could not be had from apt's mirror (see above). Download its" \
            "caffe_1.0.0+git20180821.99bd997.orig.tar.gz, then run 'CAFFE_SOURCE=that/file make caffe'."
}

# What later releases of protobuf, Boost and Python ask for; and scikit-image, needed to load pictures, is optional.
mend_source() {
    sed -i 's/kProtoReadBytesLimit, 536870912/kProtoReadBytesLimit/' src/caffe/util/io.cpp
    sed -i 's/python-py\$/python$/; s/PYTHON-PY\$/PYTHON$/' cmake/Dependencies.cmake
    sed -i -e 's/^import skimage.io/try:\n    import skimage.io/' \
        -e 's/^from skimage.transform import resize/    from skimage.transform import resize\nexcept ImportError:\n    skimage = None/' \
        -e '/^from scipy.ndimage import zoom/d' -e 's/^import numpy as np/&\nfrom scipy.ndimage import zoom/' \
        python/caffe/io.py
}

make_venv() {
    rm -rf $venv
    mkdir $venv
    echo unfinished >$stamp
    .venv/bin/python -m venv --without-pip $venv
    site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    of_python '"import site; site.addsitedir(%r)" % sysconfig.get_path("purelib")' >"$site/main-venv.pth"
    # protobuf reads what Debian's protoc 3.21 writes; lmdb makes databases for Caffe's Data layers.
    .venv/bin/python -m pip --disable-pip-version-check --python $venv/bin/python install --quiet --no-deps \
        protobuf==4.25.8 six==1.17.0 lmdb==1.7.5
}

# One library with all of Caffe in it, not linked to a libpython: the interpreter brings its own.
build() {
    include=$(of_python 'sysconfig.get_path("include")')
    [ -e "$include/Python.h" ] || include=/usr/include/$(of_python '"python%d.%d" % sys.version_info[:2]')
    cmake -S "$work/src" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POLICY_VERSION_MINIMUM=3.5 \
        -DCPU_ONLY=ON -DBLAS=Open -DUSE_OPENCV=OFF -DUSE_LEVELDB=OFF -DBUILD_SHARED_LIBS=OFF -DBUILD_docs=OFF \
        -DBUILD_matlab=OFF -Dpython_version=3 -DPYTHON_EXECUTABLE="$root/$venv/bin/python" \
        -DPYTHON_INCLUDE_DIR="$include" -DPYTHON_LIBRARY:STRING=m >"$work/log" 2>&1 &&
        nice -n 19 make -C "$work/build" -j "${CAFFE_JOBS:-$(nproc)}" pycaffe >>"$work/log" 2>&1 ||
        { tail -n 30 "$work/log" >&2; fail "Caffe could not be built (see above)."; }
    (cd "$work/src/python/caffe" && rm -rf test imagenet _caffe.cpp && cp -RL . "$site/caffe")
    cp "$work/src/LICENSE" "$site/caffe/LICENSE"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'say "interrupted; the same command starts again"; exit 130' INT TERM HUP
unset PYTHONPATH PYTHONHOME

install_packages
check_python
say "fetching the source of Caffe, a download of 20 MB"
fetch_source
echo "$sha256  $work/caffe.orig.tar.gz" | sha256sum --check --quiet >&2 ||
    fail "the downloaded source of Caffe is not the one that this script knows."
mkdir "$work/src"
tar -xzf "$work/caffe.orig.tar.gz" -C "$work/src"
(cd "$work/src" && mend_source)
make_venv
say "building Caffe, some minutes"
build
GLOG_minloglevel=2 $venv/bin/python -c 'import caffe' || fail "the built Caffe does not start (see above)."
wanted >$stamp.new
mv $stamp.new $stamp
say "done, $venv is ready"
