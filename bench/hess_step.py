"""SecretFlow's HESS-SGD, two parties in processes of their own over gRPC: what a step costs.

Run by a Python that has `hess_requirements.txt` and not by ours: `python hess_step.py ROWS.npz STEPS RATE`
takes the arrays `features` (the first party's half first), `labels` (0 and 1), and prints a line of JSON.
SecretFlow as its own test of HESS-SGD sets it up: production mode without Ray, two HEUs with
Okamoto-Uchiyama keys of 2048 bits, an SPU with Semi2k over FM128 (its SPU-to-HEU conversion takes no other
protocol). Its sigmoid is its own, 1/2 + H/8 cut to [0, 1], and each party has an intercept; it adds up
gradients, so its rate is ours over the rows. It prints what a run of one step takes and what one of STEPS
does, keys and SecretFlow's compilation in every step included.

Bytes and messages are what each party's gRPC service received from the other, ciphertexts and shares as
SecretFlow pickles them, and what the SPU's runtime says of its own link.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import traceback
from typing import Any

import numpy as np

PARTIES = ("alice", "bob")
LINK = re.compile(r"total send bytes (\d+), recv bytes \d+, send actions (\d+)")


def party(path: str, name: str, steps: int, rate: float, ports: list[int]) -> dict[str, Any]:
    """One party's process: both run the same program, each does its own part of it."""
    import secretflow as sf
    import spu
    from secretflow.data import FedNdarray, PartitionWay
    from secretflow.distributed.fed.proxy.grpc.grpc import GrpcProxy
    from secretflow.ml.linear.hess_sgd import HESSLogisticRegression

    sizes: list[int] = []
    take = GrpcProxy.SendData

    def counted(self: Any, request: Any, context: Any) -> Any:
        sizes.append(request.ByteSize())
        return take(self, request, context)

    GrpcProxy.SendData = counted
    found = np.load(path)
    features, labels = found["features"], found["labels"].astype(np.float64)
    half = features.shape[1] // 2
    addresses = [f"127.0.0.1:{port}" for port in ports]
    here = {who: {"address": address} for who, address in zip(PARTIES, addresses[:2], strict=True)}
    sf.init(cluster_config={"self_party": name, "parties": here}, ray_mode=False, logging_level="warning")
    alice, bob = (sf.PYU(who) for who in PARTIES)
    blocks = {alice: alice(lambda: features[:, :half])(), bob: bob(lambda: features[:, half:])()}
    x = FedNdarray(blocks, PartitionWay.VERTICAL)
    y = FedNdarray({bob: bob(lambda: labels)()}, PartitionWay.VERTICAL)
    sf.wait([*x.partitions.values(), *y.partitions.values()])
    sizes.clear()
    cpu, wall = time.process_time(), time.perf_counter()
    nodes = [{"party": w, "address": a} for w, a in zip(PARTIES, addresses[2:], strict=True)]
    runtime = {"protocol": spu.ProtocolKind.SEMI2K, "field": spu.FieldType.FM128}
    runtime["enable_pphlo_profile"] = True
    spu_device = sf.SPU({"nodes": nodes, "runtime_config": runtime}, link_desc={"connect_retry_times": 60})
    heus = [sf.HEU(_keys(keeper, other), spu.FieldType.FM128) for keeper, other in (PARTIES, PARTIES[::-1])]
    model = HESSLogisticRegression(spu_device, *heus)
    model.fit(x, y, learning_rate=rate / len(labels), epochs=steps)
    sf.wait([model._w])
    spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    traffic = {"bytes": sum(sizes), "messages": len(sizes)}
    weights = np.asarray(sf.reveal(model._w)).ravel().tolist()
    sf.shutdown()
    return {**spent, **traffic, "weights": weights}


def _keys(keeper: str, other: str) -> dict[str, Any]:
    return {
        "sk_keeper": {"party": keeper},
        "evaluators": [{"party": other}],
        "mode": "PHEU",
        "he_parameters": {"schema": "ou", "key_pair": {"generate": {"bit_size": 2048}}},
        "encoding": {"cleartext_type": "DT_I32", "encoder": "IntegerEncoder", "encoder_args": {"scale": 1}},
    }


def both(path: str, steps: int, rate: str) -> dict[str, Any]:
    """A run: processor seconds and traffic of both parties, wall time of the later one."""
    command = [sys.executable, __file__, path, str(steps), rate]
    ports = [str(port) for port in free_ports(4)]
    runs = [
        subprocess.Popen(
            [*command, name, *ports], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for name in PARTIES
    ]
    try:
        texts = [run.communicate(timeout=1800)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    for run, text in zip(runs, texts, strict=True):
        if run.returncode:
            raise SystemExit(text)
    return together([read(text) for text in texts])


def read(text: str) -> dict[str, Any]:
    """What a party's process printed: its line of JSON, and the SPU's log of what it sent."""
    lines = [line for line in text.splitlines() if line.startswith('{"cpu"')]
    found: dict[str, Any] = json.loads(lines[-1])
    for sent, sends in LINK.findall(text):
        found["bytes"] += int(sent)
        found["messages"] += int(sends)
    return found


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    added = {key: sum(each[key] for each in found) for key in ("cpu", "bytes", "messages")}
    return {**added, "wall": max(each["wall"] for each in found), "weights": found[0]["weights"]}


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def main() -> None:
    path, steps, rate = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if len(sys.argv) > 4:
        failed = 1
        try:
            found = party(path, sys.argv[4], steps, float(rate), [int(port) for port in sys.argv[5:]])
            print("\n" + json.dumps(found), flush=True)
            failed = 0
        finally:
            if failed:
                traceback.print_exc()
            os._exit(failed)  # threads that wait for the other party would keep the process
    short, long = both(path, 1, rate), both(path, steps, rate)
    print(json.dumps({"once": short, "whole": long}))


if __name__ == "__main__":
    main()
