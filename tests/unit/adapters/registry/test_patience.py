from __future__ import annotations

import math
import threading
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imgbuild.adapters.registry.patience import Brake, Patience, retry_after

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("9" * 30, math.inf),
        (formatdate(NOW + 90, usegmt=True), 90),
        (formatdate(NOW - 90, usegmt=True), 0),
        ("Tue, 14 Nov 2023 22:14:20", 60),
        ("Tuesday, 14-Nov-23 22:14:20 GMT", 60),
        ("Tue Nov 14 22:14:20 2023", 60),
        ("Tue, 14 Nov 2023 23:14:20 +0100", 60),
        (None, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("\u0661", None),
        ("9" * 65, None),
        ("Tue, 99 Nov 2023 22:14:20 GMT", None),
        ("Tue, 14 Nov 99999 22:14:20 GMT", None),
    ],
)
def test_C51_retry_after_is_read_in_both_forms(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, now=NOW) == seconds


@given(
    st.text(max_size=80) | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,3} [A-Z][a-z]{2} [0-9]{1,6} [0-9:]{1,12} [A-Z0-9+-]*")
)
def test_C51_no_retry_after_is_an_error(text: str) -> None:
    found = retry_after(text, now=NOW)
    assert found is None or found >= 0


def test_each_wait_is_twice_as_long_with_jitter_up_to_a_cap() -> None:
    patience = Patience(first=1.0, cap=10.0)
    for attempt, step in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 10.0), (10_000, 10.0)):
        waits = [patience.delay(attempt) for _ in range(50)]
        assert all(step / 2 <= wait <= step for wait in waits)
        assert len(set(waits)) > 1


def test_C51_a_brake_holds_everyone_until_the_longest_wait_is_over() -> None:
    brake = Brake()
    brake.wait()
    began = time.monotonic()
    brake.hold(0.2)
    brake.hold(0.05)
    ended: list[float] = []

    def go() -> None:
        brake.wait()
        ended.append(time.monotonic() - began)

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(0.2 <= seconds < 5 for seconds in ended)
    assert max(ended) - min(ended) > 0.001
