"""One random fault of all that a push or a pull can meet; each fires at most a few times and is then gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.fault_registry import actions as act
from tests.support.fault_registry import answer_actions as more
from tests.support.fault_registry.faults import Fault

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.fault_registry.messages import Kind

    Maker = Callable[[random.Random], act.Action]

_EVERY: tuple[Kind, ...] = (
    "manifest",
    "blob",
    "upload-post",
    "upload-patch",
    "upload-put",
    "upload-status",
    "token",
    "referrers",
    "ping",
)
_READ: tuple[Kind, ...] = ("manifest", "blob")
_WRITE: tuple[Kind, ...] = ("upload-patch", "upload-put", "manifest")


def _offset(rng: random.Random) -> int:
    return int(2 ** rng.uniform(0, 20)) - 1


def _cut(rng: random.Random) -> act.Action:
    if rng.random() < 0.3:
        return act.CutRequest(after_bytes=_offset(rng), how=rng.choice((413, 502, 504)))
    return act.CutRequest(after_bytes=_offset(rng), how=rng.choice(("reset", "close")))


def _busy(rng: random.Random) -> act.Action:
    return act.Busy(
        retry_after=rng.choice((0, 0, None)), form=rng.choice(("seconds", "date")), status=rng.choice((429, 503))
    )


def _answer(rng: random.Random) -> act.Action:
    status = rng.choice((400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 416, 500, 501, 502, 503, 504))
    return act.Answer(status=status, code="UNKNOWN", body=rng.choice((None, b"", act.NOT_JSON, act.CONTROL)))


_CHOICES: tuple[tuple[tuple[Kind, ...], Maker], ...] = (
    (_EVERY, lambda rng: act.Reset(handled=rng.random() < 0.5)),
    (_EVERY, _busy),
    (_EVERY, _answer),
    (_EVERY, lambda rng: act.Answer(status=rng.choice((500, 502, 503, 504)))),
    (_EVERY, lambda rng: act.HugeError(size=1 << rng.randrange(10, 31), status=rng.choice((400, 403, 500)))),
    (_EVERY, lambda rng: act.Drip(seconds=rng.choice((0.0001, 0.001)))),
    (_EVERY, lambda _: act.HugeHeaders()),
    (_EVERY, lambda _: act.HugeHeaders(count=500, size=10)),
    (_EVERY, lambda _: act.Chunked()),
    (_EVERY, lambda _: act.Unframed()),
    (_EVERY, lambda _: act.ExpireToken()),
    (_EVERY, lambda _: more.Redirect(to="{base}{path}")),
    (_EVERY, lambda _: more.Redirect(to="http://169.254.169.254/latest/meta-data", status=302)),
    (_EVERY, lambda _: more.Redirect(to="file:///etc/passwd", status=302)),
    (_READ, lambda rng: act.ResetInAnswer(after_bytes=_offset(rng))),
    (_READ, lambda rng: act.CloseInAnswer(after_bytes=_offset(rng))),
    (_READ, lambda rng: act.FlipBit(at=_offset(rng))),
    (_READ, lambda rng: act.Stall(after_bytes=_offset(rng), seconds=rng.choice((0.01, 0.2)))),
    (_READ, lambda _: act.Endless()),
    (_READ, lambda rng: more.Gzip(force=rng.random() < 0.5)),
    (_READ, lambda _: more.DropHeader(name="Docker-Content-Digest")),
    (_READ, lambda _: more.SetHeader(name="Docker-Content-Digest", value="sha256:" + "0" * 64)),
    (("manifest",), lambda _: more.Reformat()),
    (("manifest",), lambda _: more.VanishBlob()),
    (("manifest",), lambda _: more.VanishManifest()),
    (("manifest",), lambda _: more.ForgetTag()),
    (("blob",), lambda _: more.IgnoreRange()),
    (("blob",), lambda rng: more.ShiftRange(by=rng.randrange(1, 100), honest=rng.random() < 0.5)),
    (("blob",), lambda _: more.DropHeader(name="Content-Range")),
    (_WRITE, _cut),
    (("upload-patch", "upload-put"), lambda rng: more.RefuseOver(limit=_offset(rng))),
    (("upload-post",), lambda rng: more.RefuseMount(status=rng.choice((202, 400, 401, 403, 404)))),
    (("upload-post", "upload-patch", "upload-status"), lambda _: more.DropHeader(name="Location")),
    (("upload-post", "upload-patch", "upload-status"), lambda _: more.DropHeader(name="Range")),
    (("upload-post", "upload-patch", "upload-status"), lambda _: more.LocationForm(form="relative")),
    (
        ("upload-post", "upload-patch"),
        lambda _: more.LocationForm(form="origin", origin="http://169.254.169.254"),
    ),
    (("upload-patch", "upload-status"), lambda rng: more.WrongCount(form=rng.choice(("first", "last")))),
)


def random_fault(rng: random.Random) -> Fault:
    """One fault of those above, at one of the first requests of its kind, once or as a storm of at most four."""
    kinds, make = rng.choice(_CHOICES)
    return Fault(
        action=make(rng),
        kind=rng.choice(kinds),
        skip=rng.choice((0, 0, 0, 1, 2, 5)),
        times=rng.choice((1, 1, 1, 2, 4)),
    )
