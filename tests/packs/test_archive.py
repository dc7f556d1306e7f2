"""Archives as people make them are read; what strangers may do to one is refused, and never costs more than its limits."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from personae.errors import AskedWrong
from personae.packs import archive as reader
from personae.packs.archive import MAX_ENTRIES, Archive
from tests.packs.conftest import zipped
from tests.packs.zip_writer import DEFLATED, FOLDER, LINK, PIPE, STORED, Member, archive, deflated

ReadAll = Callable[[bytes], dict[str, bytes]]

TEXT = b"You are Marta. " * 200


@pytest.fixture
def read_all(tmp_path: Path) -> ReadAll:
    """name -> content of all files of an archive with these bytes."""

    def read(content: bytes) -> dict[str, bytes]:
        path = tmp_path / "some.persona"
        path.write_bytes(content)
        with path.open("rb") as stream:
            found = Archive(stream, "some.persona")
            files = {}
            for name in found.entries:
                with found.open(name) as file:
                    files[name] = file.read()
        return files

    return read


def refused(read_all: ReadAll, content: bytes) -> str:
    with pytest.raises(AskedWrong) as caught:
        read_all(content)
    assert caught.value.code == "pack_archive"
    assert "'some.persona'" in caught.value.message
    assert caught.value.hint
    return caught.value.message


# --- right ones ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_a_usual_tool_writes_is_read_as_it_was(method: int, read_all: ReadAll) -> None:
    files = {"character.toml": TEXT, "empty": b"", "a/b/deep.bin": bytes(range(256)) * 2000}
    assert read_all(zipped(files, method)) == files


def test_sizes_that_stand_behind_the_content_are_fine(tmp_path: Path, read_all: ReadAll) -> None:
    class Pipe:
        """A stream that cannot seek, so that zipfile writes sizes after the content."""

        def __init__(self) -> None:
            self.written = b""

        def write(self, piece: bytes) -> int:
            self.written += piece
            return len(piece)

        def flush(self) -> None: ...

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("character.toml", TEXT)
    assert read_all(pipe.written) == {"character.toml": TEXT}


def test_archive_may_have_a_comment_and_a_picture_before_it(read_all: ReadAll) -> None:
    assert read_all(archive([Member("a", TEXT)], before=b"\xff\xd8\xff" * 50, comment=b"PK\5\6 made by hand")) == {"a": TEXT}


def test_folders_are_passed_over_and_names_are_composed(read_all: ReadAll) -> None:
    members = [Member("voices/", mode=FOLDER, method=STORED), Member("voices/cafe\u0301.gguf", b"x"), Member(b"\x81.txt", b"y")]
    assert read_all(archive(members)) == {"voices/caf\u00e9.gguf": b"x", "\u00fc.txt": b"y"}


def test_pieces_of_any_size_give_the_same_content(tmp_path: Path) -> None:
    path = tmp_path / "a.persona"
    content = bytes(range(256)) * 1500
    path.write_bytes(archive([Member("a", content)]))
    with path.open("rb") as stream:
        found = Archive(stream, "a")
        for size in (1000, 65_536, 70_001):
            with found.open("a") as file:
                assert b"".join(iter(lambda file=file, size=size: file.read(size), b"")) == content


# --- wrong ones ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd", "../up", "a/../../up", "C:/windows", "c:up", "a\\b", "\\\\host\\share", "a//b", "./a", "a/.", "a/ b", "a/b.txt "),
        *("nul\0byte", "line\nbreak", "tab\there", "esc\x1b[2J", "right\u202eleft", "", "/", "x" * 256, "a/" * 8 + "deep"),
    ],
)
def test_names_that_could_mean_another_place_are_refused(name: str, read_all: ReadAll) -> None:
    said = refused(read_all, archive([Member("character.toml", TEXT), Member(name, b"x")]))
    assert said.isprintable()


@pytest.mark.parametrize(
    "names",
    [
        ("a", "a"),
        ("A.gguf", "a.GGUF"),
        ("caf\u00e9", "cafe\u0301"),
        ("stra\u00dfe", "STRASSE"),
        ("a", "a/b"),
        ("A/b", "a"),
        ("a/", "a"),
        ("a/", "A/"),
    ],
)
def test_names_that_a_file_system_may_hold_for_one_are_refused(names: tuple[str, str], read_all: ReadAll) -> None:
    refused(read_all, archive([Member(name, b"" if name.endswith("/") else b"x", STORED, mode=0) for name in names]))


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (Member("link", b"/etc/passwd", mode=LINK), "link or a device"),
        (Member("pipe", mode=PIPE), "link or a device"),
        (Member("a", mode=FOLDER), "both a file and a folder"),
        (Member("a/", b"", STORED), "both a file and a folder"),
        (Member("a/", b"content", STORED, mode=FOLDER), "sizes"),
        (Member("a", TEXT, flags=0x1), "encrypted"),
        (Member("a", TEXT, flags=0x40), "encrypted"),
        (Member("a", TEXT, flags=0x2000), "encrypted"),
        (Member("a", TEXT, method=14), "method 14"),
        (Member(b"\xff\xfe", b"x", flags=0x800), "not UTF-8"),
        (Member("a", b"x", local_name="b"), "another name"),
        (Member("a", b"x", local_name="longer"), "another name"),
        (Member("a", b"x", header_at=7), "where its directory says"),
        (Member("a", b"x", header_at=1_000_000), "where its directory says"),
        (Member("a", TEXT, STORED, n_bytes=5), "sizes"),
        (Member("a", TEXT, n_packed=100_000), "overlap"),
        (Member("a", TEXT, n_bytes=3 * 1024**3), "more than"),
        (Member("a", TEXT, n_bytes=1024**3), "to one"),
    ],
)
def test_entry_that_is_not_plain_is_refused(member: Member, said: str, read_all: ReadAll) -> None:
    assert said in refused(read_all, archive([Member("character.toml", TEXT), member]))


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (Member("a", TEXT, n_bytes=len(TEXT) - 1), "checksum"),
        (Member("a", TEXT, n_bytes=len(TEXT) + 1), "less of"),
        (Member("a", TEXT[:-1], n_bytes=len(TEXT) - 1, packed=deflated(TEXT)), "more of"),
        (Member("a", TEXT, crc=1), "checksum"),
        (Member("a", TEXT, packed=b"\xff" * 50), "damaged"),
        (Member("a", TEXT, packed=deflated(TEXT)[:-20]), "less of"),
        (Member("a", b"x" * 10, packed=b""), "less of"),
    ],
)
def test_content_that_is_not_what_the_directory_promised_is_refused(member: Member, said: str, read_all: ReadAll) -> None:
    assert said in refused(read_all, archive([member]))


def test_bomb_gives_no_more_than_it_states_whatever_is_in_it(tmp_path: Path) -> None:
    """Forty megabytes in forty kilobytes that call themselves a hundred bytes."""
    path = tmp_path / "bomb.persona"
    path.write_bytes(archive([Member("a", b"\0" * 100, packed=deflated(b"\0" * 40_000_000))]))
    tracemalloc.start()
    with path.open("rb") as stream, pytest.raises(AskedWrong, match="more of"):
        Archive(stream, "bomb").open("a").read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_files_that_share_bytes_are_refused(read_all: ReadAll) -> None:
    """A bomb of a thousand names for one content (Fifield's) needs no high ratio."""
    inner = archive([Member("b", TEXT)])
    assert "overlap" in refused(read_all, archive([Member("a", inner, STORED), Member("b", TEXT, header_at=31)]))


def test_all_files_together_are_bounded(read_all: ReadAll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_TOTAL_BYTES", 2 * len(TEXT))
    assert len(read_all(archive([Member("a", TEXT), Member("b", TEXT)]))) == 2
    assert "would unpack to more" in refused(read_all, archive([Member("a", TEXT), Member("b", TEXT), Member("c", b"x")]))


def test_archive_and_its_directory_are_bounded(read_all: ReadAll, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "entries" in refused(read_all, archive([Member(f"{n}", b"", STORED) for n in range(MAX_ENTRIES + 1)]))
    assert "entries" in refused(read_all, archive([Member("a", TEXT)], n_entries=65_535))
    monkeypatch.setattr(reader, "MAX_DIRECTORY_BYTES", 40)
    assert "directory of" in refused(read_all, archive([Member("a", TEXT)]))
    monkeypatch.setattr(reader, "MAX_ARCHIVE_BYTES", 40)
    assert "more than 40" in refused(read_all, archive([Member("a", TEXT)]))


@pytest.mark.parametrize(("n_entries", "said"), [(0, "does not end"), (1, "does not end"), (3, "cut off")])
def test_directory_of_another_length_is_refused(n_entries: int, said: str, read_all: ReadAll) -> None:
    assert said in refused(read_all, archive([Member("a", TEXT), Member("b", TEXT)], n_entries=n_entries))


def test_parts_garbled_directories_and_other_files_are_refused(read_all: ReadAll) -> None:
    assert "parts" in refused(read_all, archive([Member("a", TEXT)], disk=1))
    assert "garbled" in refused(read_all, archive([Member("a", TEXT)]).replace(b"PK\1\2", b"PK\1\3"))
    assert "where its directory says" in refused(read_all, archive([Member("a", TEXT)]).replace(b"PK\3\4", b"PK\3\5"))
    assert "no zip archive" in refused(read_all, b"7z\xbc\xaf\x27\x1c and so on")
    assert "beyond its end" in refused(read_all, archive([Member("a", TEXT)])[60:])


def test_archive_without_its_end_is_incomplete(read_all: ReadAll) -> None:
    whole = archive([Member("a", TEXT), Member("b", TEXT, method=DEFLATED)])
    for n in range(len(whole)):
        with pytest.raises(AskedWrong) as caught:
            read_all(whole[:n])
        assert caught.value.code == "pack_incomplete", n


@pytest.mark.parametrize("where", range(0, 260, 7))
def test_any_flipped_byte_is_harmless(where: int, read_all: ReadAll) -> None:
    """Either it does not matter or it is refused in words."""
    content = bytearray(archive([Member("a", TEXT), Member("b", b"short", STORED)]))
    content[where % len(content)] ^= 0xFF
    with suppress(AskedWrong):
        assert set(read_all(bytes(content)).values()) <= {TEXT, b"short"}
