"""The gate verifies before it decodes, and nothing but the gate decodes what is stored."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import celery_lowkiq
from celery_lowkiq.integration.codec import Codec
from celery_lowkiq.integration.gate import Gate, Signing, Unverified
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import Payload, StoredRecord
from tests.traps import trap

PACKAGE = Path(celery_lowkiq.__file__).parent
#: Who imports a decoder that may run code: the codec, what only writes, and what reads pipes of processes
#: that this one started.
DECODERS = {
    # Messages between a worker and its node process.
    "integration/bootstep/node/server.py": {"pickle"},
    "integration/bootstep/node/supervisor.py": {"pickle"},
    "integration/codec.py": {"kombu.serialization", "kombu.utils.json"},
    "integration/result_writes.py": {"kombu.serialization", "kombu.utils.json"},
    "integration/processes/child.py": {"pickle"},
    "integration/processes/protocol.py": {"marshal", "pickle"},
    "integration/processes/child_runs.py": {"pickle"},
}
HARMLESS = {"pickle.PicklingError", "kombu.utils.json.JSONEncoder"}
DANGEROUS = (
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "yaml",
    "msgpack",
    "kombu.serialization",
    "kombu.utils.json",
)
KEYS = {"2026-11": "the secret of november"}
JSON = Codec("json", ["json", "pickle"], 65536)


OFF = Signing("off", None)


def gate(signing=OFF):
    return Gate("pay", JSON, JSON, signing)


def imported(tree):
    """The full names of what a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def trees():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def test_only_the_gate_decodes():
    """``eager.py`` decodes what it has serialized itself, and ``codec.py`` defines the function."""
    files = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if getattr(node, "attr", getattr(node, "name", "")) == "load_verified"
    }
    assert files == {"integration/codec.py", "integration/gate.py", "integration/eager.py"}


def test_no_other_file_imports_a_decoder_that_may_run_code():
    found = {
        name: {one for one in DANGEROUS for full in uses if full == one or full.startswith(f"{one}.")}
        for name, tree in trees()
        if (uses := set(imported(tree)) - HARMLESS)
    }
    assert {name: decoders for name, decoders in found.items() if decoders} == DECODERS


@pytest.fixture
def pickled(tmp_path):
    yield trap(tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


def test_the_trap_works(tmp_path):
    gate().load("1", Payload(trap(tmp_path / "trace"), 1.0))
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("signature", [b"", b"s", b"s" * 24, b"S" * 24])
def test_what_does_not_verify_is_not_decoded(pickled, signature):
    closed = gate(Signing("require", KEYS))
    with pytest.raises(Unverified):
        closed.load("1", Payload(pickled, 1.0, signature=signature))
    with pytest.raises(Unverified):
        closed.load_record(StoredRecord(b"1\0" + bytes(10), 0, signature.replace(b"s", b"c") + pickled))
    with pytest.raises(Unverified):
        closed.load_unsigned(pickled)
    closed.check_accepted("1", Payload(pickled, 1.0, signature=signature))


def test_a_wrong_signature_is_not_decoded_during_a_rollout_either(pickled):
    with pytest.raises(Unverified):
        gate(Signing("accept", KEYS)).load("1", Payload(pickled, 1.0, signature=b"s" * 24))


def test_what_verifies_is_decoded():
    signing = Signing("require", KEYS)
    data = Codec("pickle", ["pickle"], 65536).dump({"a": (1, 2)})
    signed = Payload(data, 5.0, signature=signing.sign_payload("pay", b"1", data, 5.0))
    assert gate(signing).load("1", signed) == {"a": (1, 2)}
    record = signing.sign_record("pay", b"1", bytes(10), data) + data
    assert gate(signing).load_record(StoredRecord(b"1\0" + bytes(10) + b"x", 0, record)) == {"a": (1, 2)}


def test_a_copy_without_a_signature_is_plain_json():
    """No class is made of what it names."""
    tagged = b'{"__type__":"uuid","__value__":{"hex":"%032x"}}' % 7
    assert gate(Signing("require", KEYS)).load_unsigned(tagged)["__type__"] == "uuid"
    assert gate().load_unsigned(tagged).int == 7
    for data in (b"NaN", b"\xff", b"[" * 100_000):
        with pytest.raises(UndecodablePayload):
            gate(Signing("require", KEYS)).load_unsigned(data)


@pytest.mark.parametrize("mode", ["accept", "require"])
def test_only_what_has_a_signature_counts_as_signed(mode):
    """What a rollout lets run must not be signed anew unseen."""
    signing = Signing(mode, KEYS)
    stored = StoredRecord(b"1\0" + bytes(10), 0, b'["a"]')
    assert not gate(signing).is_signed("1", Payload(b"1", 1.0))
    assert not gate(signing).is_signed_record(stored)
    assert not gate().is_signed_record(stored)
    record = signing.sign_record("pay", b"1", bytes(10), stored.data) + stored.data
    assert gate(signing).is_signed_record(stored._replace(data=record))
