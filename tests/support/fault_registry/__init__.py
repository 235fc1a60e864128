"""A strict OCI registry in process, with a log of requests and with every fault that registries are known for.

It serves the distribution specification 1.1 on real sockets and refuses what the specification forbids a client.
Start with `FaultRegistry`; then `Auth` (who may), `Switches` (how it is all the time), `Fault` and the actions (what
goes wrong, and when).
"""

from __future__ import annotations

from tests.support.fault_registry.actions import (
    CONTROL,
    NOT_JSON,
    Action,
    Answer,
    Busy,
    Chunked,
    CloseInAnswer,
    CutRequest,
    Drip,
    Endless,
    ExpireToken,
    FlipBit,
    Hang,
    HugeError,
    HugeHeaders,
    Reset,
    ResetInAnswer,
    Stall,
    Unframed,
)
from tests.support.fault_registry.answer_actions import (
    DropHeader,
    ForgetTag,
    Gzip,
    IgnoreRange,
    LocationForm,
    Redirect,
    Reformat,
    RefuseMount,
    RefuseOver,
    SetHeader,
    ShiftRange,
    VanishBlob,
    VanishManifest,
    WrongCount,
)
from tests.support.fault_registry.auth import Auth
from tests.support.fault_registry.faults import Fault, Faults
from tests.support.fault_registry.messages import Kind, Request, Response
from tests.support.fault_registry.random_faults import random_fault
from tests.support.fault_registry.seeding import SeededImage
from tests.support.fault_registry.server import FaultRegistry
from tests.support.fault_registry.storage import Blob, Manifest, Repository, Storage, digest_of, repeated, stored
from tests.support.fault_registry.switches import Switches

__all__ = [
    "CONTROL",
    "NOT_JSON",
    "Action",
    "Answer",
    "Auth",
    "Blob",
    "Busy",
    "Chunked",
    "CloseInAnswer",
    "CutRequest",
    "Drip",
    "DropHeader",
    "Endless",
    "ExpireToken",
    "Fault",
    "FaultRegistry",
    "Faults",
    "FlipBit",
    "ForgetTag",
    "Gzip",
    "Hang",
    "HugeError",
    "HugeHeaders",
    "IgnoreRange",
    "Kind",
    "LocationForm",
    "Manifest",
    "Redirect",
    "Reformat",
    "RefuseMount",
    "RefuseOver",
    "Repository",
    "Request",
    "Reset",
    "ResetInAnswer",
    "Response",
    "SeededImage",
    "SetHeader",
    "ShiftRange",
    "Stall",
    "Storage",
    "Switches",
    "Unframed",
    "VanishBlob",
    "VanishManifest",
    "WrongCount",
    "digest_of",
    "random_fault",
    "repeated",
    "stored",
]
