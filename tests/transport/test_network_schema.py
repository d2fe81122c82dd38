"""The generated files are what protoc makes of the schema, and the schema is what the documentation says."""

from __future__ import annotations

import pytest

from securefed.transport.network import wire_pb2
from securefed.transport.network.core import DELIVER, GREET, SERVICE
from tests.transport.generate_wire import TARGET, generate


def test_the_generated_files_are_up_to_date() -> None:
    pytest.importorskip("grpc_tools")
    made = generate()
    assert sorted(made) == ["wire_pb2.py", "wire_pb2.pyi"]
    for name, text in made.items():
        assert (TARGET / name).read_text() == text, f"{name}: python -m tests.transport.generate_wire"


def test_every_message_carries_what_it_is_checked_by() -> None:
    fields = {field.name for field in wire_pb2.Envelope.DESCRIPTOR.fields}
    assert {"run", "round", "step", "sequence", "kind", "settings", "attempt", "sender", "receiver"} <= fields


def test_the_schema_names_the_calls_that_there_are() -> None:
    text = (TARGET / "wire.proto").read_text()
    assert f"package {SERVICE.rpartition('.')[0]};" in text
    for path in (GREET, DELIVER):
        assert f"//   {path} " in text
