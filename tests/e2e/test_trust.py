"""Nothing in the cache decides, and no lock may say another thing than its definition."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from imgbuild.cli import run
from imgbuild.digest import Digest

from tests.support.refusals import forge, locked, source

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.tiny import Tiny

ZEROES = "sha256:" + "0" * 64


def command(tiny: Tiny, *words: str) -> int:
    return run([*words, "tiny", "--json", "--project", str(tiny.root), "--cache", str(tiny.cache_path)])


def error(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    return found


def without_result(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in {"facts", "result"}}


def memos(tiny: Tiny) -> list[Any]:
    return sorted((tiny.cache_path / "results").iterdir())


@pytest.mark.parametrize(
    "body", [b"5\n", b"{}\n", b"null\n", b'["a"]\n', b"[1,2,3,4]\n", b"\xff", b'["../../x",1]', b""]
)
def test_what_does_not_read_as_a_memo_is_none(tiny: Tiny, body: bytes) -> None:
    assert command(tiny, "build") == 0
    for path in memos(tiny):
        path.write_bytes(str(Digest.of(body)).encode() + b"\n" + body)
    assert command(tiny, "build") == 0


def test_exchanged_memos_change_no_digest_even_without_a_result_in_the_lock(tiny: Tiny) -> None:
    whole = locked(tiny)
    assert command(tiny, "build") == 0
    found = memos(tiny)
    bodies = [path.read_bytes() for path in found]
    for path, body in zip(found, [*bodies[1:], bodies[0]], strict=True):
        path.write_bytes(body)
    forge(tiny, without_result(whole))
    assert command(tiny, "lock", "--complete") == 0
    assert locked(tiny) == whole


def wrong_wheel(value: dict[str, Any]) -> None:
    source(value, "nccl-wheel")["digest"] = ZEROES
    source(value, "nccl")["wheel_digest"] = ZEROES


def wrong_member(value: dict[str, Any]) -> None:
    source(value, "nccl")["member"] = "no/such/member"


def wrong_link(value: dict[str, Any]) -> None:
    source(value, "nccl")["wheel_digest"] = ZEROES


def wrong_epoch(value: dict[str, Any]) -> None:
    value["pins"]["epoch"] += 1


def wrong_platform(value: dict[str, Any]) -> None:
    value["platform"] = "linux/amd64"


def wrong_ref(value: dict[str, Any]) -> None:
    source(value, "adapter")["ref"] = "other"


def doubled_file(value: dict[str, Any]) -> None:
    value["pins"]["files"].append(value["pins"]["files"][0])


CHANGES = [
    (wrong_wheel, 5, "nccl_like-2.30.7"),
    (wrong_member, 3, "was made for something else"),
    (wrong_link, 3, "is not the digest of 'nccl-wheel'"),
    (wrong_epoch, 3, "pins.epoch: the definition says"),
    (wrong_platform, 3, "platform: the definition says linux/arm64, the lock linux/amd64"),
    (wrong_ref, 3, "pins.sources[adapter]: was made for something else"),
    (doubled_file, 3, "stands twice"),
]


@pytest.mark.parametrize("verb", ["build", "verify"])
@pytest.mark.parametrize(("change", "code", "says"), CHANGES, ids=[change.__name__ for change, _, _ in CHANGES])
def test_a_lock_that_contradicts_its_definition_or_itself_is_refused_with_a_warm_cache(
    tiny: Tiny,
    verb: str,
    change: Callable[[dict[str, Any]], None],
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(tiny, "build") == 0
    value = without_result(locked(tiny)) if verb == "build" else locked(tiny)
    change(value)
    forge(tiny, value)
    capsys.readouterr()
    arguments = ["--offline"] if verb == "build" else []
    found = command(tiny, verb, *arguments)
    if change is wrong_wheel and verb == "verify":
        # An image is verified from its own bytes: where they came from is seen in the embedded lock.
        findings = json.loads(capsys.readouterr().out)["result"]["findings"]
        assert found == 1
        assert "embedded.lock" in {row["check"] for row in findings if row["verdict"] == "differs"}
        return
    message = error(capsys)["message"]
    assert found == code, message
    assert says in message


def test_verify_asks_whether_the_lock_is_for_this_definition(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tiny, "build") == 0
    tiny.image["library"] = None
    tiny.write()
    capsys.readouterr()
    assert command(tiny, "verify") == 3
    assert error(capsys)["code"] == "LOCK_STALE"


def test_a_number_of_five_thousand_digits_in_a_definition_is_a_document_error(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.root / "locks" / "tiny.toml"
    path.write_text(f"{path.read_text()}\nlarge = {'9' * 5000}\n")
    assert command(tiny, "build") == 3
    assert error(capsys)["code"] == "DOCUMENT_INVALID"


def test_a_value_from_an_image_cannot_imitate_a_line_of_the_report(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.base_env = ["PATH=/usr/bin", "LD_PRELOAD=/x\n  match        library.nccl.provider     /all/good"]
    tiny.write()
    assert command(tiny, "lock", "--update", "base") == 0
    capsys.readouterr()
    code = run(["build", "tiny", "--project", str(tiny.root), "--cache", str(tiny.cache_path)])
    assert code == 1
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("  match") and line.endswith("/all/good")]
    assert [line for line in lines if r"\n  match" in line]
