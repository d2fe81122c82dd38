"""One party as a process of its own: `python -m tests.transport.party FILE`, where FILE is JSON.

It plays rounds with its peers: everybody sends everybody a block, and folds what came into a state. After
each round the state goes into a checkpoint (a file for each round), and whoever starts again, or whose peer
does, goes on from the last round that all have: what the layer above does with a model, in small.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from securefed.engine import Processes
from securefed.transport.identity import Certificate, Identity, Peer
from securefed.transport.link import Link
from securefed.transport.message import PeerGone
from securefed.transport.network.endpoint import Endpoint
from securefed.transport.network.host import Timeouts
from securefed.transport.network.run import NetworkLink

KINDS = ("block",)


def block(name: str, peer: str, turn: int, size: int, state: str) -> bytes:
    seed = hashlib.sha256(f"{name} {peer} {turn} {state}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def own_pid(_: None) -> int:
    return os.getpid()


def main(settings: dict[str, Any]) -> None:
    folder, name = Path(settings["folder"]), settings["name"]
    rounds, size = settings["rounds"], settings["size"]
    peers = {
        peer: Peer(address, Certificate.read(folder.parent / f"{peer}.pem"))
        for peer, address in settings["peers"].items()
    }
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)

    def last() -> int:
        return max((int(path.name) for path in checkpoints.iterdir() if path.name.isdigit()), default=0)

    async def program(link: Link) -> dict[str, Any]:
        if not isinstance(link, NetworkLink):
            raise TypeError(link)
        begin = min([last(), *(facts["round"] for facts in link.hello.values())])
        state = (checkpoints / str(begin)).read_text() if begin else ""
        for turn in range(begin, rounds):
            for peer in link.peers:
                link.send(peer, "block", block(name, peer, turn, size, state), round=turn)
            whole = hashlib.sha256(state.encode())
            for peer in sorted(link.peers):
                whole.update(await link.receive("block", peer, round=turn))
            time.sleep(settings.get("work", 0.0))
            state = whole.hexdigest()
            (checkpoints / "new").write_text(state)
            os.replace(checkpoints / "new", checkpoints / str(turn + 1))
        path = link.path
        return {"state": state, "began": begin, "paths": [path.computation, path.communication, path.total]}

    pool = Processes(1) if settings.get("fork") else None
    with Endpoint(
        Identity.load(folder, "a passphrase"),
        listen=settings["listen"],
        peers=peers,
        timeouts=Timeouts(join=30, patience=20, beat=0.2, answer=2, farewell=5),
    ) as endpoint:
        if pool is not None:
            (worker,) = pool.map(own_pid, [None])
            (checkpoints / "new").write_text(str(worker))
            os.replace(checkpoints / "new", folder / "worker")
        while True:
            facts = {"round": last()}
            try:
                run = endpoint.run(
                    program, run="r", kinds=KINDS, settings={"rounds": rounds, "size": size}, facts=facts
                )
            except PeerGone as error:
                print(f"again: {error}", file=sys.stderr)  # noqa: T201
                continue
            break
    if pool is not None:
        pool.close()
    print(json.dumps(run.outcome))  # noqa: T201


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    main(json.loads(Path(sys.argv[1]).read_text()))
