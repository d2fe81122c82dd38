# Generated from wire.proto by `python -m tests.transport.generate_wire`. Do not edit.
# ruff: noqa
# fmt: off
# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ABSENT: _ClassVar[State]
    GREETING: _ClassVar[State]
    RUNNING: _ClassVar[State]
    FINISHED: _ClassVar[State]
    LEFT: _ClassVar[State]
ABSENT: State
GREETING: State
RUNNING: State
FINISHED: State
LEFT: State

class Hello(_message.Message):
    __slots__ = ("protocol", "run", "sender", "receiver", "session", "state", "settings", "facts", "sessions", "clock", "reason", "refusal", "heard", "arrived", "holding")
    class SessionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    run: str
    sender: str
    receiver: str
    session: bytes
    state: State
    settings: bytes
    facts: bytes
    sessions: _containers.ScalarMap[str, bytes]
    clock: float
    reason: str
    refusal: str
    heard: State
    arrived: int
    holding: bool
    def __init__(self, protocol: _Optional[int] = ..., run: _Optional[str] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., session: _Optional[bytes] = ..., state: _Optional[_Union[State, str]] = ..., settings: _Optional[bytes] = ..., facts: _Optional[bytes] = ..., sessions: _Optional[_Mapping[str, bytes]] = ..., clock: _Optional[float] = ..., reason: _Optional[str] = ..., refusal: _Optional[str] = ..., heard: _Optional[_Union[State, str]] = ..., arrived: _Optional[int] = ..., holding: _Optional[bool] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("run", "sender", "receiver", "attempt", "settings", "sequence", "kind", "round", "step", "size", "computation", "communication")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_FIELD_NUMBER: _ClassVar[int]
    run: str
    sender: str
    receiver: str
    attempt: bytes
    settings: bytes
    sequence: int
    kind: str
    round: int
    step: int
    size: int
    computation: float
    communication: float
    def __init__(self, run: _Optional[str] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., attempt: _Optional[bytes] = ..., settings: _Optional[bytes] = ..., sequence: _Optional[int] = ..., kind: _Optional[str] = ..., round: _Optional[int] = ..., step: _Optional[int] = ..., size: _Optional[int] = ..., computation: _Optional[float] = ..., communication: _Optional[float] = ...) -> None: ...

class Letter(_message.Message):
    __slots__ = ("envelope", "data")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    data: bytes
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("envelope", "data")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    data: bytes
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("sequence", "again")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    again: bool
    def __init__(self, sequence: _Optional[int] = ..., again: _Optional[bool] = ...) -> None: ...
