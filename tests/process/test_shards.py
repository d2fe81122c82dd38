"""Arrays on disk that are damaged: one named error, whatever the damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from securefed.assembly.base import read_arrays, write_arrays
from securefed.errors import DataError, SettingError
from securefed.files import check_writable


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 16), st.integers(1, 255), st.booleans())
@example(8, 99, False)  # a compression method that there is not
@example(6, 1, False)  # encrypted
def test_a_damaged_archive_is_data_or_a_named_error(tmp_path: Path, place: int, flip: int, cut: bool) -> None:
    path = tmp_path / "shard.npz"
    write_arrays(path, {"weights": np.arange(5.0), "public": np.array("{}")})
    blob = bytearray(path.read_bytes())
    place %= len(blob)
    blob[place] ^= flip
    path.write_bytes(bytes(blob[:place] if cut else blob))
    try:
        found = read_arrays(path, "model")
    except DataError as error:
        assert str(error).startswith(f"{path}: not a model")
    else:  # the damage was where nothing is read, or an entry is gone
        assert set(found) <= {"weights", "public"}
        assert np.array_equal(found.get("weights", np.arange(5.0)), np.arange(5.0))


def test_a_file_that_cannot_be_written_later_is_refused_now(tmp_path: Path) -> None:
    check_writable("out", tmp_path / "scores.csv")
    assert list(tmp_path.iterdir()) == []
    for path in (tmp_path, tmp_path / "nowhere" / "scores.csv", Path("/proc/scores.csv")):
        with pytest.raises(SettingError, match=f"out: {path} cannot be written"):
            check_writable("out", path)
