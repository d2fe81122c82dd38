"""The width limit of a blind run: memory of the shares, and the messages about it.

After its pass a blind run of d columns works on d x d matrices of shares. A number is five limbs of eight
bytes. Every matrix exists twice, as integers and as floating-point numbers. Runs that learn from held-out
rows at the end have two matrices. Under RLWE the sums of one product are 4,096 coefficients modulo five
primes for every column of every matrix, twice while they are added.

Measured with both parties in one process, 2,000 rows, 24 rounds, RLWE, no rows held out, one core of an AMD
EPYC that other work shared (processor seconds on the critical path; memory of both parties together):

    columns in all     computation    bytes sent    memory
    100                0.4 s          8 MB          0.05 GB
    300                1.2 s          23 MB         0.14 GB
    600                3.3 s          51 MB         0.3 GB
    1,000              6 s            90 MB         0.6 GB
    2,000              24 s           267 MB        1.7 GB

With a fifth of the rows held out, 2,000 columns took 40 s, 483 MB and 3.2 GB.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from securefed.crypto import cross_scheme
from securefed.crypto.lattice.ring import DEGREE, PRIMES
from securefed.crypto.shares import LIMBS
from securefed.errors import SettingError
from securefed.protocols.agreement import Agreement

PRACTICAL_COLUMNS = 2000
"""Columns of all parties together that take less than a minute on two cores."""
MOST_SECONDS = 3600.0
WORD = 8
WINDOWS = 128 << 20
"""Bytes for blocks of ciphertexts in transit."""


def peak_memory(agreement: Agreement) -> int:
    """Estimate the bytes that a share-holding party of a blind run needs besides its own table."""
    columns = sum(member.parameters for member in agreement.members)
    systems = agreement.batches.folds + 1 if agreement.batches.holdout_rows else 1
    matrices = WORD * LIMBS * columns**2 * (2 * systems + 1)
    sums = 0
    if cross_scheme(agreement.scheme).name == "rlwe":
        sums = 2 * WORD * len(PRIMES) * DEGREE * columns * systems
    return matrices + sums + WINDOWS


def machine_memory() -> int:
    """Return the bytes of memory that this process may use; a terabyte if unknown.

    It is the least of the machine's memory, the container's (cgroup) and the process's limit (ulimit -v).
    """
    limits = [1 << 40]
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number, and no limit
            limits.append(int(Path(path).read_text()))
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def check_memory(agreement: Agreement, memory: int | None = None) -> None:
    """Raise SettingError if the shares of a blind run need more bytes than `memory`, or this machine, has."""
    due, there, columns = _figures(agreement, memory)
    if due > there:
        raise SettingError(
            f"columns: {columns:,} in all given; shares of {columns:,} x {columns:,} numbers take"
            f" {due / 1e9:.1f} GB at each of two parties, this machine has {there / 1e9:.1f} GB; up to"
            f" {PRACTICAL_COLUMNS:,} columns are practical. Use fewer columns, or protection=OwnGradient()"
        )


def too_large(agreement: Agreement, seconds: float, memory: int | None = None) -> list[str]:
    """Return warnings about a blind run that takes that many seconds."""
    lines, (due, there, columns) = [], _figures(agreement, memory)
    if due > there / 2:
        lines.append(
            f"{columns:,} columns in all take {due / 1e9:.1f} GB at each of two parties, more than half of"
            f" this machine's {there / 1e9:.1f} GB"
        )
    if columns > PRACTICAL_COLUMNS or seconds > MOST_SECONDS:
        lines.append(
            f"{columns:,} columns in all and {agreement.common_rows:,} rows take about"
            f" {seconds / 60:,.0f} minutes; up to {PRACTICAL_COLUMNS:,} columns are practical on two cores"
        )
    return lines


def _figures(agreement: Agreement, memory: int | None) -> tuple[int, int, int]:
    """Return the needed bytes, the available bytes, and the columns in all."""
    columns = sum(member.parameters for member in agreement.members)
    return peak_memory(agreement), machine_memory() if memory is None else memory, columns
