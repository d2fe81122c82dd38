"""That a key-holder's public keys have small errors: before first use, zeros are opened, commit and reveal.

Hidden arrays pass their key-holder under bounded masks, with a fresh encryption of zero against what c1 would
show. A key whose errors are huge makes the noise of that zero, or of a merge, stand above the mask, and its
maker reads from it what it was to hide. So before the first array:

    holder -> key-holder   key-check          encryptions of zero, each through all switching keys, masked
    key-holder -> holder   range-commitment   a hash of its answer
    holder -> key-holder   range-reveal       the seed of the mask
    key-holder -> holder   range-opening      what it decrypted, flooded, under the mask

The holder refuses the key, by its maker's name, if a coefficient is beyond 2^75. docs/security.md derives
what a crafted key gets past that with (2^-39 at most, unless twice its errors are small). The key-holder
opens only what is noise, below 2^40, and floods it; it tells that its keys are good, and nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from securefed.crypto import KeyHolder
from securefed.crypto.errors import BadKey, OpeningRefused
from securefed.protocols.channel import Channel
from securefed.transport import Link

__all__ = ["SMALL_ERRORS", "check_keys"]

SEED_BYTES = 32
MOST_BITS = 75
NOISE_BITS = 40
SMALL_ERRORS = "errors are small"
"""The check that the audit looks for."""


async def check_keys(link: Link, public: Any, opener: str, own: KeyHolder | None, peers: list[str]) -> None:
    """One party's part: `public` is checked with `opener` (None: there is none to check), and `own` for
    `peers`.
    """
    pending: Any = None
    if public is not None:
        seed = secrets.token_bytes(SEED_BYTES)
        with link.activity("keys"):
            masked, mask = public.zero_chains(seed)
        Channel(link, opener).ask("key-check", masked, mask)
        pending = seed, mask
    answers = [await _answer(link, own, peer) for peer in peers if own is not None]
    if pending is not None:
        commitment = await link.receive("range-commitment", opener)
        link.send(opener, "range-reveal", pending[0])
    for peer, raw, answer in answers:
        seed = await link.receive("range-reveal", peer)
        if len(seed) != SEED_BYTES:
            raise OpeningRefused(f"range-reveal: {len(seed)} bytes given by {peer}, {SEED_BYTES} are allowed")
        if raw.public.noise_bits(raw, seed) > NOISE_BITS:
            raise OpeningRefused(f"{peer} asks in a check of keys for something that is no zero")
        link.send(peer, "range-opening", answer)
    if pending is not None:
        await _judge(link, public, opener, commitment, *pending)


async def _answer(link: Link, own: KeyHolder, peer: str) -> tuple[str, Any, bytes]:
    public: Any = own.public
    channel = Channel(link, peer)
    blob = await channel.hear("key-check")
    with link.activity("keys"):
        masked = public.load_masked(blob)
        if masked.shape != public.chain_shape:
            raise OpeningRefused(
                f"a check of keys of shape {masked.shape} given, {public.chain_shape} is due"
            )
        raw, flooded = own.open_noise(masked)
        answer = flooded.to_bytes()
    channel.checked("key-check", "as agreed", "not seen")
    channel.tell("range-commitment", hashlib.sha256(answer).digest())
    return peer, raw, answer


async def _judge(link: Link, public: Any, opener: str, commitment: bytes, seed: bytes, mask: Any) -> None:
    channel = Channel(link, opener)
    blob = await channel.hear("range-opening")
    with link.activity("keys"):
        opened = public.load_opened(blob)
        bits = public.noise_bits(opened, seed)
    if hashlib.sha256(blob).digest() != commitment:
        raise BadKey(f"{opener} answered a check of its keys with something else than it committed to")
    if bits > MOST_BITS:
        raise BadKey(
            f"{opener}'s keys are crafted: a zero under them has noise of {bits} bits, at most {MOST_BITS}"
            " are allowed; with such keys it could read through masks"
        )
    channel.remove("range-opening", mask, opened, "committed", SMALL_ERRORS)
