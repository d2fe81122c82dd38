"""A warm start: a shared model in the basis of an earlier run, brought to the basis of this one.

The shares of a model are of phi = P^(-1/2) theta, and P_k follows from party k's own columns of that run. So
theta goes on as

    phi_k <- T_k phi_k,      T_k = P_k^(-1/2) of this run times P_k^(1/2) of the earlier one.

Party k alone knows T_k. A holder multiplies its own share by its own matrix itself. Every other product is an
encrypted one (`turns`). The label party encrypts wherever it takes part; a helper encrypts its shares for the
parties that hold none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefed.crypto import shares
from securefed.crypto.blind.interface import CrossScheme, Product
from securefed.crypto.scheme import Mapper
from securefed.crypto.shares import Share
from securefed.errors import SettingError
from securefed.protocols.blind.cross import Encryptor, Multiplier, operand_of
from securefed.protocols.blind.precision import MATRIX_BITS
from securefed.protocols.blind.statistics import Parties
from securefed.transport import Link

__all__ = ["Turn", "rebase", "turns"]

Array = NDArray[np.float64]
STEP = 1 << 15
"""Steps of these messages: beyond those of the pass."""
TURN_BITS = MATRIX_BITS + 14
"""Of the entries of T."""


@dataclass(frozen=True)
class Turn:
    """One encrypted product: the owner's matrix and somebody's share of the owner's parameters."""

    encryptor: str
    multiplier: str
    owner: str
    product: Product
    key_step: int
    step: int

    def share(self, share: Share) -> Share:
        """Return a share of the product as (5, parameters, outputs)."""
        return share if self.owner == self.encryptor else share.transpose(0, 2, 1)


def turns(parties: Parties) -> list[Turn]:
    """List all encrypted products, by encryptor."""
    label_party, second = parties.holders
    outputs, size = parties.outputs, parties.size(label_party)
    encryptors = [(STEP, label_party)]
    if parties.helper is not None:
        encryptors.append((STEP + 3, parties.helper))
    listed = []
    for key_step, encryptor in encryptors:
        for name in parties.names[:-1]:
            own = parties.size(name)
            product = Product(own, outputs, own, right_bits=TURN_BITS)
            listed.append(Turn(encryptor, name, name, product, key_step, key_step + 1))
        if encryptor == label_party:
            product = Product(size, size, outputs, TURN_BITS)
            listed.append(Turn(label_party, second, label_party, product, key_step, key_step + 2))
    return listed


async def rebase(
    link: Link, parties: Parties, phi: Share | None, turn: Array | None, scheme: CrossScheme, mapper: Mapper
) -> Share | None:
    """Take one party's part. Holders get new shares.

    Parameters
    ----------
    phi: a holder's shares of the model.
    turn: T of a party with data.
    """
    if turn is not None and float(np.abs(turn).max()) >= 2.0 ** (TURN_BITS - MATRIX_BITS):
        raise SettingError(
            "warm_start: this party's steps are far smaller than those of the fit before, because of a"
            " smaller learning rate or of other columns; take a learning rate nearer to the earlier one, or"
            " fit afresh"
        )
    whole = shares.zeros(0, 0) if turn is None else shares.from_floats(turn, MATRIX_BITS)
    total = shares.zeros(parties.columns, parties.outputs)
    if phi is not None and turn is not None:
        own = parties.block(link.name)
        total[:, own] = shares.matmul(whole, phi[:, own])
    listed = turns(parties)
    for encryptor in dict.fromkeys(each.encryptor for each in listed):
        due = [each for each in listed if each.encryptor == encryptor]
        keys: Encryptor | Multiplier | None = None
        names = list(dict.fromkeys(each.multiplier for each in due))
        if link.name == encryptor:
            keys = await Encryptor.begin(link, scheme, names, mapper, step=due[0].key_step)
        elif link.name in names:
            keys = await Multiplier.begin(link, scheme, encryptor, mapper, step=due[0].key_step)
        for each in due:
            at, factor = parties.block(each.owner), whole.transpose(0, 2, 1)
            if link.name != each.owner and phi is not None:
                factor = phi[:, at]
            if isinstance(keys, Encryptor):
                await keys.send(each.multiplier, each.product, operand_of(factor), step=each.step)
                total[:, at] += each.share(await keys.read(each.multiplier, each.product, step=each.step))
            elif keys is not None and link.name == each.multiplier:
                share = each.share(await keys.multiply(each.product, operand_of(factor), step=each.step))
                if phi is not None:
                    total[:, at] += share
                else:
                    link.send(parties.peer(encryptor), "part", shares.to_bytes(share), step=each.step)
        if isinstance(keys, Encryptor):
            keys.end()
        # Parties that hold no shares hand theirs to the holder that did not encrypt.
        for each in due if link.name == parties.peer(encryptor) else ():
            if each.multiplier not in parties.holders:
                at = parties.block(each.owner)
                arrived = await link.receive("part", each.multiplier, step=each.step)
                total[:, at] += shares.from_bytes(arrived, total[:, at].shape)
    if phi is None:
        return None
    return shares.truncate(shares.carry(total), MATRIX_BITS, first=link.name == parties.label_party)
