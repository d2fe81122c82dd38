"""A machine that does not let CKKS have its memory says so in words of its operator."""

from __future__ import annotations

import subprocess
import sys

import pytest

SMALL = """
import resource
from securefed.crypto import generate
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    generate("ckks").public.to_bytes()
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
def test_a_limit_on_file_sizes_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CKKS needs a file in memory of")
    assert "ulimit -f" in done.stdout
