"""For tests of FSDP on CPUs, which some releases of torch cannot do: skipped there, with the release that can."""

import pytest

from helpers import releases

REFUSED = releases.fsdp_refusal("cpu")
needs_fsdp = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)
