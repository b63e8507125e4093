"""One Hypothesis profile: quick by default, `--hypothesis-profile=thorough` for the long run.

Kernels compile inside the first example, so there is no deadline.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from minispec.model import operations

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("quick", quick)
settings.register_profile("thorough", quick, max_examples=5000)
# As quick, for test_mutants.py, which waits for a first failure and not for the smallest, and must not depend on luck.
once = [Phase.explicit, Phase.generate]
settings.register_profile("mutants", quick, phases=once, derandomize=True, database=None)
settings.load_profile("quick")


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compile before the first test, so that no test sees the note that says so."""
    operations("numba").warm_up(np.dtype(np.float32))
