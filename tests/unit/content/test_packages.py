from __future__ import annotations

import base64
import csv
import hashlib
import io

import pytest
from imgbuild.content.node import Node
from imgbuild.content.packages import (
    Distribution,
    Parsed,
    RecordRow,
    distribution,
    distributions,
    encoded_hash,
    owners,
    parse_record,
    rewrite_record,
)
from imgbuild.content.record import read_record
from imgbuild.content.tree import Tree
from imgbuild.errors import StepError

SITE = b"opt/lib/site-packages"
OLD = hashlib.sha256(b"old").hexdigest()
NEW = hashlib.sha256(b"new").hexdigest()
TARGET = SITE + b"/pkg/lib.so"
LINE = f"pkg/lib.so,{encoded_hash(OLD)},3"
SWAPPED = f"pkg/lib.so,{encoded_hash(NEW)},33"


def rows(text: str | bytes) -> tuple[RecordRow, ...]:
    return parse_record(text.encode() if isinstance(text, str) else text, site=SITE)


def rewrite(text: str | bytes, path: bytes = TARGET, *, sha256: str | None = NEW) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return rewrite_record(raw, path, site=SITE, sha256=sha256, size=33, subject="file RECORD")


def test_a_hash_is_written_as_urlsafe_base64_without_padding() -> None:
    assert encoded_hash(hashlib.sha256(b"").hexdigest()) == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


class TestParse:
    def test_a_row_gives_path_hash_and_size(self) -> None:
        assert rows(LINE) == (RecordRow(path=TARGET, sha256=OLD, size=3),)

    def test_a_row_without_hash_and_size_is_the_record_itself(self) -> None:
        assert rows("pkg-1.dist-info/RECORD,,\n") == (
            RecordRow(path=SITE + b"/pkg-1.dist-info/RECORD", sha256=None, size=None),
        )

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    def test_every_end_of_line_is_one(self, end: str) -> None:
        assert [row.path for row in rows(f"a,,{end}b,,{end}{end}c,,")] == [
            SITE + b"/" + name for name in (b"a", b"b", b"c")
        ]

    @pytest.mark.parametrize(
        ("written", "path"),
        [
            ("../../bin/tool", b"opt/bin/tool"),
            ("../../../../../../etc/x", b"etc/x"),
            ("/usr/share/man", b"usr/share/man"),
            ("//usr/share", b"usr/share"),
            ("./a//b/../c", SITE + b"/a/c"),
            ('"a,b"', SITE + b"/a,b"),
            ('"a""b"', SITE + b'/a"b'),
            ('"a\nb"', SITE + b"/a\nb"),
            ("é/\u2028", SITE + "/é/\u2028".encode()),
            ("with space", SITE + b"/with space"),
        ],
    )
    def test_paths_are_taken_from_the_folder_of_the_packages(self, written: str, path: bytes) -> None:
        assert [row.path for row in rows(f"{written},,\nb,,\n")] == [path, SITE + b"/b"]

    @pytest.mark.parametrize("encoded", ["md5=xxxx", "sha512=" + "a" * 86, "sha384=a", "", "SHA256=x"])
    def test_a_hash_of_another_algorithm_is_none_and_named(self, encoded: str) -> None:
        algorithm = encoded.partition("=")[0] or None
        assert rows(f"a,{encoded},5") == (RecordRow(path=SITE + b"/a", sha256=None, size=5, algorithm=algorithm),)

    def test_padding_of_a_hash_is_accepted(self) -> None:
        assert rows(f"a,{encoded_hash(OLD)}=,5")[0].sha256 == OLD

    @pytest.mark.parametrize(
        "raw",
        [
            b"a",
            b"a,b",
            b"a,,,",
            b"a,sha256=!!!!,1",
            b"a,sha256=,1",
            b"a,sha256,1",
            b"a,sha256=A,1",
            b"a,sha256=AAAA,1",
            "a,sha256=é,1".encode(),
            b"a,sha256=" + base64.urlsafe_b64encode(bytes(33)) + b",1",
            b"a,sha256=*" + base64.urlsafe_b64encode(bytes(32)) + b",1",
            b"a,,-1",
            b"a,,1.5",
            b"a,,0x1",
            b"a,,1_0",
            b"a,, 1",
            "a,,\u0663".encode(),
            b"a,," + b"9" * 5_000,
            b'"a,,',
            b'"a"b,,',
            b"\xff,,",
            b"a" * 140_000 + b",,",
        ],
    )
    def test_what_is_no_record_is_a_value_error_and_no_other(self, raw: bytes) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - the contract is the class
            rows(raw)
        with pytest.raises(StepError, match="file RECORD: is a RECORD that cannot be read"):
            rewrite(LINE.encode() + b"\n" + raw)


class TestRewrite:
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_only_the_row_of_the_file_changes_and_its_end_of_line_stays(self, end: str) -> None:
        text = 'first,,{0}"odd, one",sha256=,{0}{1}{0}last , md5=x,{0}'.replace("sha256=", "").format(end, LINE)
        assert rewrite(text) == text.replace(LINE, SWAPPED).encode()

    def test_the_last_row_may_have_no_end_of_line(self) -> None:
        assert rewrite(f"a,,\n{LINE}") == f"a,,\n{SWAPPED}".encode()

    @pytest.mark.parametrize(
        "written", ["pkg/lib.so", "./pkg//lib.so", "/opt/lib/site-packages/pkg/lib.so", '"pkg/lib.so"']
    )
    def test_the_row_is_found_by_the_path_that_it_means(self, written: str) -> None:
        (row,) = rows(rewrite(f"{written},{encoded_hash(OLD)},3\n"))
        assert row == RecordRow(path=TARGET, sha256=NEW, size=33)

    @pytest.mark.parametrize("name", ["a,b", 'a"b', '"', "a\nb", "a\r\nb", "é,\u2028", " a "])
    def test_a_name_that_needs_quotes_is_still_the_same_name(self, name: str) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL).writerow([name, "", ""])
        before = b"x,,\r\n" + text.getvalue().encode() + b"y,,\r\n"
        after = rewrite(before, SITE + b"/" + name.encode())
        assert after.startswith(b"x,,\r\n")
        assert after.endswith(b"\r\ny,,\r\n")
        assert [row.path for row in rows(after)] == [row.path for row in rows(before)]
        assert [row.sha256 for row in rows(after)] == [None, NEW, None]

    @pytest.mark.parametrize("hashed", ["", "md5=1B2M2Y8AsgTpgAmY7PhCfg", "sha512=x"])
    def test_a_row_with_another_algorithm_or_none_gets_a_sha256(self, hashed: str) -> None:
        assert rewrite(f"pkg/lib.so,{hashed},3\n") == f"{SWAPPED}\n".encode()

    @pytest.mark.parametrize("end", ["\n", "\r\n", ""])
    def test_the_row_of_a_removed_file_goes_with_its_end_of_line(self, end: str) -> None:
        assert rewrite(f"a,,\n{LINE}{end}", sha256=None) == b"a,,\n"
        assert rewrite(f'"pkg/lib.so",,\nb,,{end}', sha256=None) == f"b,,{end}".encode()

    @pytest.mark.parametrize(
        ("text", "count"),
        [
            ("", 0),
            ("a,,\n", 0),
            ("pkg/LIB.so,,\n", 0),
            (f"{LINE}\n{LINE}\n", 2),
            (f"{LINE}\n./pkg/lib.so,,\n/opt/lib/site-packages/pkg/lib.so,,\n", 3),
        ],
    )
    @pytest.mark.parametrize("sha256", [NEW, None])
    def test_a_record_that_does_not_list_the_file_once_is_refused(
        self, text: str, count: int, sha256: str | None
    ) -> None:
        with pytest.raises(StepError, match="does not list the swapped file once") as caught:
            rewrite(text, sha256=sha256)
        assert (caught.value.subject, caught.value.expected, caught.value.actual) == (
            "file RECORD", "1 row", f"{count} rows",
        )  # fmt: skip


def installed(files: dict[str, bytes], *extra: tuple[str, str]) -> tuple[Distribution, ...]:
    tree = Tree()
    for path, data in files.items():
        tree.put(path.encode(), Node(type="file", mode=0o644, size=len(data)))
    for path, kind in extra:
        tree.put(path.encode(), Node(type=kind, mode=0o755))
    return distributions(tree, lambda path: files.get(path.decode()))


class TestDistributions:
    def test_names_versions_requirements_and_rows_are_read_from_dist_info_folders(self) -> None:
        metadata = (
            b"Metadata-Version: 2.1\nName: My_Pkg\nVersion: 1.0\nRequires-Dist: a>=1\nRequires-Dist: b\n\nName: no\n"
        )
        (found,) = installed(
            {"s/My_Pkg-1.0.dist-info/METADATA": metadata, "s/My_Pkg-1.0.dist-info/RECORD": b"my/a.py,,\n"}
        )
        assert found == Distribution(
            name="my-pkg",
            version="1.0",
            folder=b"s/My_Pkg-1.0.dist-info",
            requires=("a>=1", "b"),
            record=read_record(b"my/a.py,,\n", site=b"s"),
        )
        assert found.rows == (RecordRow(path=b"s/my/a.py", sha256=None, size=None),)

    def test_they_are_found_anywhere_in_the_order_of_the_tree(self) -> None:
        found = installed({f"{folder}-1.dist-info/METADATA": b"" for folder in ("z/a", "b", "b/c/d")})
        assert [item.folder for item in found] == [b"b/c/d-1.dist-info", b"b-1.dist-info", b"z/a-1.dist-info"]

    @pytest.mark.parametrize(
        ("files", "problem"),
        [
            ({"RECORD": b""}, "has no METADATA"),
            ({"METADATA": b"Name: a\nVersion: 1\n"}, "has no RECORD"),
            (
                {"METADATA": b"Name: a\nVersion: 1\n", "RECORD": b"a,b\n"},
                "has a RECORD that cannot be read: a row has 2",
            ),
            ({"METADATA": b"Name: a\nVersion: 1\n", "RECORD": b"a,sha256=%,1\n"}, "has a RECORD that cannot be read"),
            ({"METADATA": b"Name: a\nVersion: 1\n", "RECORD": b"\xff,,\n"}, "has a RECORD that cannot be read"),
            ({"METADATA": b"Name: a\nVersion: 1\n", "RECORD": b'"\n'}, "has a RECORD that cannot be read"),
        ],
    )
    def test_a_distribution_that_cannot_be_read_is_named_with_its_problem(
        self, files: dict[str, bytes], problem: str
    ) -> None:
        (found,) = installed({f"s/a-1.dist-info/{name}": data for name, data in files.items()})
        assert found.name == "a"
        assert found.version == "1"
        assert (found.problem or "").startswith(problem)

    @pytest.mark.parametrize("metadata", [b"", b"\xff\xfe\0", b"Name: \xff\nVersion: \xfe\n", b":\n: x", b"Name\n" * 9])
    def test_hostile_metadata_raise_nothing(self, metadata: bytes) -> None:
        (found,) = installed({"s/a-1.dist-info/METADATA": metadata, "s/a-1.dist-info/RECORD": b""})
        assert found.folder == b"s/a-1.dist-info"

    def test_a_file_or_link_that_is_named_like_a_folder_is_none(self) -> None:
        assert installed({"s/a-1.dist-info": b""}, ("s/b-1.dist-info", "symlink")) == ()
        assert len(installed({}, ("s/b-1.dist-info", "directory"))) == 1


class TestOwners:
    def test_every_distribution_that_lists_a_path_claims_it(self) -> None:
        one, two = (
            installed({f"s/{name}-1.dist-info/RECORD": record})[0]
            for name, record in (("a", b"both,,\nonly,,\n"), ("b", b"both,,\n"))
        )
        assert owners((one, two), b"s/both") == (one, two)
        assert owners((one, two), b"s/only") == (one,)
        assert owners((one, two), b"s/none") == owners((one, two), b"other/only") == owners((), b"s/both") == ()

    def test_a_distribution_that_lists_a_path_twice_claims_it_once(self) -> None:
        (one,) = installed({"s/a-1.dist-info/RECORD": b"x,,\n./x,,\n" * 20_000})
        assert owners((one,), b"s/x") == (one,)

    @pytest.mark.parametrize("name", ["../../bin/x", "./../../bin/x", '"../../bin/x"', "/opt/bin/x"])
    def test_a_path_outside_of_the_folder_of_the_packages_is_claimed_however_it_is_written(self, name: str) -> None:
        (one,) = installed({f"{SITE.decode()}/a-1.dist-info/RECORD": f"a,,\n{name},,5\n".encode()})
        assert owners((one,), b"opt/bin/x") == (one,)
        assert owners((one,), SITE + b"/../../bin/x") == ()


class TestParsedBefore:
    """What was read once is not read again while folder, METADATA and RECORD are the same."""

    def tree(self, **other: str | None) -> Tree:
        given = {"folder": "s/a-1.dist-info", "metadata": "a", "record": "b", **other}
        folder = str(given.pop("folder"))
        tree = Tree()
        tree.put(folder.encode(), Node(type="directory", mode=0o755))
        for name, digest in given.items():
            if digest is not None:
                tree.put(f"{folder}/{name.upper()}".encode(), Node(type="file", mode=0o644, sha256=digest * 64 or None))
        return tree

    def test_the_same_digests_in_the_same_folder_are_not_read(self) -> None:
        parsed: Parsed = {}
        (first,) = distributions(self.tree(), lambda _: b"", parsed)
        (again,) = distributions(self.tree(), never, parsed)
        assert first is again

    @pytest.mark.parametrize(
        "other",
        [
            {"record": "c"},
            {"record": None},
            {"record": ""},
            {"metadata": "c"},
            {"metadata": None},
            {"metadata": ""},
            {"folder": "t/a-1.dist-info"},
        ],
    )
    def test_any_other_is_read(self, other: dict[str, str | None]) -> None:
        parsed: Parsed = {}
        distributions(self.tree(), lambda _: b"", parsed)
        assert self.read(parsed, other)

    @pytest.mark.parametrize("name", ["record", "metadata"])
    def test_a_file_without_a_digest_is_not_taken_for_one_that_is_missing(self, name: str) -> None:
        parsed: Parsed = {}
        distributions(self.tree(**{name: None}), lambda path: None if name.upper().encode() in path else b"", parsed)
        assert len(parsed) == 1
        assert self.read(parsed, {name: ""})

    def read(self, parsed: Parsed, other: dict[str, str | None]) -> list[bytes]:
        read: list[bytes] = []
        distributions(self.tree(**other), read.append, parsed)
        return read

    def test_what_could_not_be_had_is_asked_for_again(self) -> None:
        parsed: Parsed = {}
        (lost,) = distributions(self.tree(), lambda _: None, parsed)
        (found,) = distributions(self.tree(), lambda path: b"" if path.endswith(b"METADATA") else b"a,,\n", parsed)
        assert (lost.problem, found.problem, len(found.record)) == ("has no METADATA", None, 1)

    def test_a_link_stands_for_what_it_leads_to(self) -> None:
        tree, parsed = self.tree(record="c"), Parsed()
        tree.put(b"s/a-1.dist-info/RECORD", Node(type="symlink", mode=0o777, link=b"../r"))
        for digest, read in (("b", [b"METADATA", b"RECORD"]), ("b", []), ("d", [b"METADATA", b"RECORD"])):
            tree.put(b"s/r", Node(type="file", mode=0o644, sha256=digest * 64))
            assert [path.rpartition(b"/")[2] for path in seen_by(tree, parsed)] == read

    def test_one_folder_alone_is_read_as_it_is_now(self) -> None:
        tree = self.tree()
        found = distribution(tree, b"s/a-1.dist-info", lambda _: b"")
        assert found is not None
        assert found.problem is None
        assert distribution(tree, b"s/b-1.dist-info", never) is None
        assert distribution(tree, b"s/a-1.dist-info/RECORD", never) is None


def seen_by(tree: Tree, parsed: Parsed) -> list[bytes]:
    """The paths that are read."""
    seen: list[bytes] = []

    def read(path: bytes) -> bytes:
        seen.append(path)
        return b""

    distributions(tree, read, parsed)
    return seen


def never(path: bytes) -> bytes | None:
    raise AssertionError(path)
