from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from imgbuild.adapters.registry.settings import default_file, read_settings
from imgbuild.errors import DocumentError, LockVersionError, UsageError
from imgbuild.model.registries import SCHEMA, RegistriesDocument, RegistrySettings

if TYPE_CHECKING:
    from pathlib import Path


def document(**registry: RegistrySettings) -> RegistriesDocument:
    return RegistriesDocument(schema=SCHEMA, registry=registry)


def read(folder: Path, text: str | bytes) -> RegistriesDocument:
    file = folder / "registries.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_settings(file)


def test_every_setting_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        f"""
        schema = "{SCHEMA}"
        [registry."Registry.example.test:5000"]
        mirrors = ["mirror.example.test/cache", "[::1]:5000"]
        plain-http = true
        ca = "ca.pem"
        profile = "ecr"
        chunk-bytes = 1000
        parallel = 4
        """,
    )
    settings = found.of("registry.EXAMPLE.test:5000")
    assert (settings.plain_http, settings.ca, settings.profile) == (True, "ca.pem", "ecr")
    assert (settings.chunk_bytes, settings.parallel, len(settings.mirrors)) == (1000, 4, 2)
    assert found.of("registry.example.test") == RegistrySettings()


def test_without_a_file_nothing_is_said_and_the_project_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registries.toml").write_text("not read")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / "imgbuild" / "registries.toml"
    assert default_file() == file
    assert read_settings(None) == RegistriesDocument(schema=SCHEMA)
    file.parent.mkdir(parents=True)
    file.write_text(f'schema = "{SCHEMA}"\n[registry."a.test"]\nparallel = 2')
    assert read_settings(None).of("a.test").parallel == 2
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_file() == tmp_path / ".config" / "imgbuild" / "registries.toml"


def test_a_named_file_that_is_missing_or_no_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        read_settings(tmp_path / "nothing")
    with pytest.raises(UsageError):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"\xff", "is not TOML"),
        ("a = [" + "[" * 5000, "is not TOML"),
        ("x", "is not TOML"),
        ("schema = 1", "schema: expected"),
        (f'schema = "{SCHEMA}"\nother = 1', "other"),
        (f'schema = "{SCHEMA}"\n[registry."a.test"]\nplain_http = true', "plain_http"),
        (f'schema = "{SCHEMA}"\n[registry."https://a.test"]\n', "host"),
        (f'schema = "{SCHEMA}"\n[registry."a.test"]\nmirrors = ["https://b.test"]', "mirrors"),
        (f'schema = "{SCHEMA}"\n[registry."a.test"]\nparallel = 0', "parallel"),
        (f'schema = "{SCHEMA}"\n[registry."a.test/x"]\nplain-http = true', "more than mirrors"),
        (f'schema = "{SCHEMA}"\n[registry."a.test/x"]\nca = "x"\nmirrors = ["b.test"]', "more than mirrors"),
        (f'schema = "{SCHEMA}"\n[registry."a.test"]\n[registry."A.test"]\n', "there twice"),
    ],
)
def test_settings_that_are_wrong_or_would_be_passed_over_are_refused(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    with pytest.raises(DocumentError, match=problem):
        read(tmp_path, text)


def test_settings_of_a_later_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LockVersionError):
        read(tmp_path, 'schema = "imgbuild/registries/v2"')


def test_the_longest_key_gives_the_mirrors_and_the_rest_of_the_name_is_kept() -> None:
    found = document(
        **{
            "a.test": RegistrySettings(mirrors=["m.test/all"]),
            "A.test/team": RegistrySettings(mirrors=["m.test/team", "n.test"]),
            "a.test/team/none": RegistrySettings(),
        }
    )
    assert found.mirrors_of("a.test/x/y") == ("m.test/all/x/y",)
    assert found.mirrors_of("a.test/team/x") == ("m.test/team/x", "n.test/x")
    assert found.mirrors_of("A.TEST/team") == ("m.test/team", "n.test")
    assert found.mirrors_of("a.test/team2/x") == ("m.test/all/team2/x",)
    assert found.mirrors_of("a.test/team/none/x") == ()
    assert found.mirrors_of("b.test/x") == ()
