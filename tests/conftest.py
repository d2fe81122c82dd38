"""Settings of every test run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The same examples in every run: a red build can be run again and stays red. HYPOTHESIS_PROFILE=explore looks
# for new ones. Deadlines and "too slow" measure the machine, and timings live in bench/.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, **UNTIMED)
settings.register_profile("explore", **UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
