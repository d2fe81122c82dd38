"""A warm start: a shared model in the basis of an earlier run, brought to the basis of this one.

The shares of a model are of phi = P^(-1/2) theta, and P_k follows from party k's own columns of that run. So
theta goes on as

    phi_k <- T_k phi_k,      T_k = P_k^(-1/2) of this run times P_k^(1/2) of the earlier one,

with T_k known to party k alone: a product of a private matrix with a shared vector. A holder multiplies its
own share by its own matrix itself; every other product is one encrypted one. The label party encrypts
wherever it takes part; a helper encrypts its shares for the parties without any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefed.crypto.blind import shares
from securefed.crypto.blind.interface import CrossScheme, Product
from securefed.crypto.blind.shares import LIMBS, Share
from securefed.crypto.scheme import Mapper
from securefed.errors import SettingError
from securefed.protocols.blind.cross import Encryptor, Multiplier, operand_of
from securefed.protocols.blind.precision import MATRIX_BITS
from securefed.protocols.blind.statistics import PassPlan
from securefed.transport import Link

__all__ = ["rebase"]

Array = NDArray[np.float64]
STEP = 1 << 15
"""Steps of these messages: beyond those of the pass."""
TURN_BITS = MATRIX_BITS + 14
"""Of the entries of T."""


async def rebase(
    link: Link,
    plan: PassPlan,
    phi: Share | None,
    turn: Array | None,
    scheme: CrossScheme,
    mapper: Mapper,
) -> Share | None:
    """One party's part. `phi`: a holder's shares, `turn`: T of a party with data. Holders get new shares."""
    label_party, second = plan.holders
    if turn is not None and float(np.abs(turn).max()) >= 2.0 ** (TURN_BITS - MATRIX_BITS):
        raise SettingError(
            "warm_start: this party's steps are far smaller than those of the fit before, because of a"
            " smaller learning rate or of other columns; take a learning rate nearer to the earlier one, or"
            " fit afresh"
        )
    whole = None if turn is None else shares.from_floats(turn, MATRIX_BITS)
    total = None if phi is None else shares.zeros(*phi.shape[1:])
    if phi is not None and total is not None and whole is not None:
        own = plan.block(link.name)
        total[:, own] = shares.matmul(whole, phi[:, own])
    others = plan.names[:-1]
    pairs = [(label_party, name) for name in others]
    pairs += [(label_party, second)] if second not in others else []
    await _multiply(link, plan, pairs, phi, whole, total, scheme, mapper, STEP)
    if plan.helper is not None:
        pairs = [(plan.helper, name) for name in others]
        await _multiply(link, plan, pairs, phi, whole, total, scheme, mapper, STEP + 3)
    if total is None:
        return None
    return shares.truncate(shares.carry(total), MATRIX_BITS, first=link.name == label_party)


async def _multiply(
    link: Link,
    plan: PassPlan,
    pairs: list[tuple[str, str]],
    phi: Share | None,
    turn: Share | None,
    total: Share | None,
    scheme: CrossScheme,
    mapper: Mapper,
    step: int,
) -> None:
    """The products of one encryptor, added to the holders' totals."""
    label_party, second = plan.holders
    encryptor = pairs[0][0]
    outputs = plan.outputs
    theirs = Product(plan.size(label_party), plan.size(label_party), outputs, TURN_BITS)
    if link.name == encryptor and total is not None and phi is not None:
        own = await Encryptor.begin(link, scheme, [name for _, name in pairs], mapper, step=step)
        for _, name in pairs:
            if name in plan.names:
                # The encryptor's share of that party's parameters, times that party's matrix.
                at = plan.block(name)
                product = Product(plan.size(name), outputs, plan.size(name), right_bits=TURN_BITS)
                await own.send(name, product, operand_of(phi[:, at]), step=step + 1)
                share = await own.read(name, product, step=step + 1)
                total[:, at] += share.transpose(0, 2, 1)
            if name == second and turn is not None:
                # The label party's matrix times the second holder's share of its parameters.
                await own.send(name, theirs, operand_of(turn.transpose(0, 2, 1)), step=step + 2)
                total[:, plan.block(label_party)] += await own.read(name, theirs, step=step + 2)
        own.end()
    elif link.name in (name for _, name in pairs):
        other = await Multiplier.begin(link, scheme, encryptor, mapper, step=step)
        if turn is not None:
            size = plan.size(link.name)
            product = Product(size, outputs, size, right_bits=TURN_BITS)
            share = await other.multiply(product, operand_of(turn.transpose(0, 2, 1)), step=step + 1)
            moved = share.transpose(0, 2, 1)
            if total is not None:
                total[:, plan.block(link.name)] += moved
            else:
                holder = second if encryptor == label_party else label_party
                link.send(holder, "part", shares.to_bytes(moved), step=step + 1)
        if link.name == second and encryptor == label_party and phi is not None and total is not None:
            at = plan.block(label_party)
            total[:, at] += await other.multiply(theirs, operand_of(phi[:, at]), step=step + 2)
    # Parties without shares hand theirs to the holder that did not encrypt.
    receiver = second if encryptor == label_party else label_party
    if link.name == receiver and total is not None:
        for _, name in pairs:
            if name in plan.names and name not in plan.holders:
                shape = (LIMBS, plan.size(name), outputs)
                arrived = await link.receive("part", name, step=step + 1)
                total[:, plan.block(name)] += shares.from_bytes(arrived, shape)
