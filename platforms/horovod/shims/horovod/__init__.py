"""Found by the processes that a script starts: from here on `horovod` is `platforms.horovod`."""

import os
import sys

_root = os.path.abspath(__file__)
for _ in range(5):
    _root = os.path.dirname(_root)
if _root not in sys.path:
    sys.path.append(_root)

from platforms.horovod import imports  # noqa: E402

imports.install()
sys.modules[__name__] = sys.modules["platforms.horovod"]
