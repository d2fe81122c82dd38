"""Curve25519 by u-coordinates: against RFC 9380's vectors and a slow ladder in plain Python."""

from __future__ import annotations

import secrets

import pytest

from securefed.data import curve
from securefed.data.curve import ORDER, PRIME
from securefed.errors import DataError

J = 486662

# RFC 9380, J.4.2: message -> u-coordinate of Q, before the cofactor is cleared.
TAG = b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_NU_"
VECTORS = {
    b"": "51125222da5e763d97f3c10fcc92ea6860b9ccbbd2eb1285728f566721c1e65b",
    b"abc": "7d56d1e08cb0ccb92baf069c18c49bb5a0dcd927eff8dcf75ca921ef7f3e6eeb",
    b"abcdef0123456789": "3fbe66b9c9883d79e8407150e7c2a1c8680bee496c62fabe4619a72b3cabe90f",
}


def ladder(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748's ladder on integers: the oracle."""
    k, u = int.from_bytes(scalar, "little"), int.from_bytes(point, "little")
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in range(254, -1, -1):
        swap = k >> bit & 1
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb = a * a % PRIME, b * b % PRIME
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % PRIME, u * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, (aa - bb) * (aa + (J - 2) // 4 * (aa - bb)) % PRIME
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, -1, PRIME) % PRIME if z2 else 0).to_bytes(32, "little")


def on_the_curve(point: bytes) -> bool:
    u = int.from_bytes(point, "little")
    return pow(u**3 + J * u * u + u, (PRIME - 1) // 2, PRIME) in (0, 1)


@pytest.mark.parametrize("message", VECTORS)
def test_the_hash_is_that_of_the_rfc(message: bytes) -> None:
    (point,) = curve.hash_to_curve([message], TAG)
    assert point[::-1].hex() == VECTORS[message]


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    messages = [str(i).encode() for i in range(50)]
    assert curve.hash_to_curve(messages, b"t") == [curve.hash_to_curve([m], b"t")[0] for m in messages]
    assert curve.hash_to_curve([], b"t") == []


def test_hashes_lie_on_the_curve_and_never_on_the_twist() -> None:
    points = curve.hash_to_curve([str(i).encode() for i in range(300)], b"t")
    assert all(on_the_curve(point) for point in points)
    assert len(set(points)) == 300
    assert curve.hash_to_curve([b"0"], b"other tag")[0] not in points


@pytest.mark.parametrize("tag", [b"", b"x" * 256])
def test_a_tag_has_a_length(tag: bytes) -> None:
    with pytest.raises(DataError, match="tag"):
        curve.hash_to_curve([b"a"], tag)


def test_multiples_are_those_of_the_ladder() -> None:
    points = curve.hash_to_curve([b"a", b"b", b"c"], b"t")
    scalar = curve.draw_scalar()
    assert curve.multiply(scalar, points) == [ladder(scalar, point) for point in points]


def test_scalars_have_the_form_that_x25519_takes_as_it_is() -> None:
    for _ in range(50):
        value = int.from_bytes(curve.draw_scalar(), "little")
        assert value % 8 == 0
        assert 2**254 <= value < 2**255


def test_a_mask_comes_off_in_any_order() -> None:
    points = curve.hash_to_curve([b"a", b"b"], b"t")
    mask, undo = curve.draw_pair()
    key = curve.draw_scalar()
    assert int.from_bytes(mask, "little") * int.from_bytes(undo, "little") % ORDER == 1
    through = curve.multiply(undo, curve.multiply(key, curve.multiply(mask, points)))
    assert through == curve.multiply(key, points)


def test_the_draws_have_a_known_answer() -> None:
    bits = iter([5, 7, 11, 13, 17, 19, 23, 29])
    scalar, undo = curve.draw_pair(lambda count: next(bits))
    number = int.from_bytes(scalar, "little")
    assert (number - 2**254) // 8 in (5, 7, 11, 13, 17, 19, 23, 29)
    assert undo == curve._representative(pow(number, -1, ORDER))


def test_one_residue_in_two_has_a_representative() -> None:
    found = sum(curve._representative(secrets.randbelow(ORDER)) is not None for _ in range(2000))
    assert 850 < found < 1150  # 1000 +- 6.7 standard deviations


# RFC 7748's list of points whose order divides 8, on the curve (and -1 on the twist).
SMALL = [
    0,
    1,
    PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


@pytest.mark.parametrize("u", SMALL)
def test_points_of_small_order_are_refused(u: int) -> None:
    with pytest.raises(curve.SmallOrder, match="small order"):
        curve.multiply(curve.draw_scalar(), [u.to_bytes(32, "little")])


def test_a_key_agreement_agrees() -> None:
    one, other = curve.draw_scalar(), curve.draw_scalar()
    assert curve.multiply(one, [curve.public(other)]) == curve.multiply(other, [curve.public(one)])
