"""What options take, and what is said where they are wrong."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from imgbuild.cli import run
from imgbuild.cli.options import Amount


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("5000000", 5_000_000),
        ("12B", 12),
        ("5MB", 5_000_000),
        ("5 mb", 5_000_000),
        ("4.5MiB", 4_718_592),
        ("1KiB", 1024),
        ("0.1kB", 100),
        ("1.000001KB", 1000),
        ("33 GB", 33_000_000_000),
        ("2TiB", 2_199_023_255_552),
        ("999999999999999", 999_999_999_999_999),
    ],
)
def test_bytes_may_have_a_unit(text: str, expected: int) -> None:
    assert Amount().convert(text, None, None) == expected


@pytest.mark.parametrize(
    "text",
    ["", "MB", "-1", "1e9", "5 M B", "5mbit", "5iB", "0x10", "1,5MB", "1_000", "\u0661MB", "9" * 5000, "nan", "1.MB"],
)
def test_what_is_no_number_of_bytes_is_refused_shortly(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        Amount().convert(text, None, None)
    assert "5MB" in caught.value.message
    assert len(caught.value.message) < 120


def test_the_settings_that_are_named_are_read_where_no_registry_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "mini", "--project", str(Path(__file__).parents[3]), "--offline", "--registries"]
    assert run([*words, str(tmp_path / "nothing")]) == 2
    assert "is not there" in capsys.readouterr().err
    (tmp_path / "wrong").write_text("schema = 7")
    assert run([*words, str(tmp_path / "wrong")]) == 3
    assert "wrong" in capsys.readouterr().err


def test_a_usage_error_names_the_help_of_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "mini", "--offline", "--push", "registry.example/mini"]) == 2
    assert "hint: see `imgbuild build --help`" in capsys.readouterr().err
