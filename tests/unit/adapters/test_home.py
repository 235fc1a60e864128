"""Who has no home, and variables that name a folder below the one we work in."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest
from imgbuild.adapters.cache import default_folder
from imgbuild.adapters.home import home, user_folder
from imgbuild.adapters.registry.settings import default_file, read_settings
from imgbuild.errors import UsageError
from imgbuild.model.registries import SCHEMA, RegistriesDocument

NAMES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "IMGBUILD_CACHE")


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number without a user, as in many containers."""

    def unknown(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_the_home_is_the_variable_s_and_else_the_user_database_s() -> None:
    assert home({"HOME": "/h"}) == Path("/h")
    here = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert {home({}), home({"HOME": ""}), home({"HOME": "relative"}), home({"HOME": "~"})} == {here}


@pytest.mark.parametrize("value", ["", "relative", "~", "./x", "../x"])
def test_a_variable_of_xdg_that_is_no_absolute_path_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    assert default_folder() == tmp_path / ".cache" / "imgbuild"
    assert default_file() == tmp_path / ".config" / "imgbuild" / "registries.toml"
    assert user_folder("X", ".x", {"X": "/x", "HOME": "/h"}) == Path("/x")


@pytest.mark.parametrize("value", [None, "", ".", "~"])
def test_without_a_home_there_is_no_default_and_the_folder_we_work_in_is_not_read_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, homeless: None, value: str | None
) -> None:
    for base in (tmp_path, tmp_path / "~"):
        (base / ".config" / "imgbuild").mkdir(parents=True)
        (base / ".config" / "imgbuild" / "registries.toml").write_text("planted")
    monkeypatch.chdir(tmp_path)
    if value is not None:
        monkeypatch.setenv("HOME", value)
    assert home() is None
    assert default_file() is None
    assert read_settings(None) == RegistriesDocument(schema=SCHEMA)
    with pytest.raises(UsageError, match="this user has no home") as caught:
        default_folder()
    assert "--cache" in caught.value.fields()["hint"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "imgbuild"
