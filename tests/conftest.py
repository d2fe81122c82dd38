"""Settings of every test run."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# The same examples in every run: a red build can be run again and stays red. HYPOTHESIS_PROFILE=explore looks
# for new ones. Deadlines and "too slow" measure the machine, and timings live in bench/.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, **UNTIMED)
settings.register_profile("explore", **UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Started in the background by a shell, a test run would hand its children an interrupt that is ignored, and
# tests that press Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
