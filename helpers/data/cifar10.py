"""The real CIFAR-10: download, check, unpack.

Source: https://www.cs.toronto.edu/~kriz/cifar.html. The address, the names and the MD5
sums of the archive and of every file in it are torchvision's own.
"""

import hashlib
import http.client
import io
import os
import pickle
import tarfile
import urllib.error
import urllib.request

import numpy as np

from .making import CIFAR_BATCHES, CIFAR_FOLDER, CIFAR_META, ChannelStatistics
from .store import PrepareError

URL_VARIABLE = "HELPERS_CIFAR10_URL"
TIMEOUT = 30  # seconds without a byte before the server is given up


class ArrayUnpickler(pickle.Unpickler):
    """Reads CIFAR-10's pickled dictionaries and refuses everything but NumPy arrays.

    A pickle may name any function to be called while it is read
    (https://docs.python.org/3/library/pickle.html#restricting-globals).
    """

    ALLOWED = {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
    }

    def find_class(self, module, name):
        if (module, name) in self.ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which no data set needs")


def unpickle(content: bytes) -> dict:
    """The dictionary of one CIFAR-10 file; pickle.UnpicklingError for anything suspicious."""
    return ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()


def received(url: str):
    """Yield (bytes, expected total or 0) piece by piece; PrepareError when the server fails."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            total = int(response.headers.get("Content-Length") or 0)
            while piece := response.read(1 << 18):
                yield piece, total
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PrepareError(
            f"cifar10 cannot be downloaded from {url} ({getattr(error, 'reason', error)}): check "
            f"the network, or set {URL_VARIABLE} to a mirror (http://, https:// or "
            "file:///path/to/cifar-10-python.tar.gz)"
        ) from error


def download(url: str, path, expected_md5: str, progress) -> None:
    """Fetch `url` to the file `path`; PrepareError unless its MD5 sum is the expected one.

    `path` lies in the temporary folder, which is removed after an error.
    """
    checksum, size = hashlib.md5(usedforsecurity=False), 0
    with open(path, "wb") as file:
        for piece, total in received(url):
            file.write(piece)
            checksum.update(piece)
            size += len(piece)
            progress(size, total)
    if checksum.hexdigest() != expected_md5:
        raise PrepareError(
            f"the download of cifar10 from {url} is truncated or damaged: expected MD5 "
            f"{expected_md5}, found {checksum.hexdigest()} in {size:,} bytes; it was removed. "
            f"Try again, or set {URL_VARIABLE} to another mirror"
        )


def unpacked(path, expected_md5s: dict):
    """Yield (name, content) of the archive's wanted files, each checked; nothing else is read.

    The members are never extracted to paths of the archive's choosing.
    """
    missing = dict(expected_md5s)
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if not (member.isfile() and member.name in missing):
                continue
            content = archive.extractfile(member).read()
            found = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if found != missing[member.name]:
                raise PrepareError(f"{member.name} in the archive of cifar10 is damaged: "
                                    f"expected MD5 {missing[member.name]}, found {found}")
            del missing[member.name]
            yield member.name, content
    if missing:
        raise PrepareError(f"the archive of cifar10 lacks {', '.join(missing)}")


def make_cifar10(out, images=None) -> dict:
    """Download the 60,000 pictures (170 MB) into CIFAR-10's own files; see prepare_sets."""
    from torchvision.datasets import CIFAR10

    archive = out.folder / "archive.part"
    download(os.environ.get(URL_VARIABLE) or CIFAR10.url, archive, CIFAR10.tgz_md5, out.progress)
    sums = [*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])]
    counts, statistics = {"train": 0, "test": 0}, ChannelStatistics()
    for name, content in unpacked(archive, {f"{CIFAR_FOLDER}/{n}": md5 for n, md5 in sums}):
        entry = unpickle(content)
        out.write(name, content)
        if name == CIFAR_META:
            classes = entry["label_names"]
        else:
            split = "test" if name in CIFAR_BATCHES["test"] else "train"
            counts[split] += len(entry["labels"])
            if split == "train":
                statistics.add(np.reshape(entry["data"], (-1, 3, 32, 32)))
    archive.unlink()
    return {"classes": list(classes), **counts, **statistics.result()}
