"""stages/data/source_hashes.py: cached hashes of a large source equal freshly computed ones."""

import os
from pathlib import Path

import pytest

from stages.checkpoint.files import hash_file, hash_files
from stages.corpus import corpus as corpus_module
from stages.corpus import files
from stages.corpus.prepare import prepare
from tests.stages.corpus.small_source import spec_of


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the names of the files that are hashed, and makes every source count as large."""
    names: list[str] = []

    def watched(paths: list[Path]):
        names.extend(path.name for path in paths)
        return hash_files(paths)

    monkeypatch.setattr(files, "hash_files", watched)
    monkeypatch.setattr(corpus_module, "CACHED_BYTES", 0)
    return names


def test_a_large_source_is_hashed_once_and_later_only_its_changed_files(
    folder: Path, tmp_path: Path, hashed: list[str]
) -> None:
    first = prepare(spec_of(folder), tmp_path / "datasets")
    assert len(hashed) == 60
    hashed.clear()
    assert prepare(spec_of(folder), tmp_path / "datasets") == first
    assert hashed == []
    os.utime(folder / "03.txt", (0, 0))
    assert prepare(spec_of(folder), tmp_path / "datasets") == first
    assert hashed == ["03.txt"]
    hashed.clear()
    (folder / "04.txt").write_text("other 4")
    second = prepare(spec_of(folder), tmp_path / "datasets")
    assert (second != first, hashed) == (True, ["04.txt"])


def test_the_cache_holds_the_hash_of_each_file_and_is_written_again_when_it_is_damaged(
    folder: Path, tmp_path: Path, hashed: list[str]
) -> None:
    first = prepare(spec_of(folder), tmp_path / "datasets")
    [memory] = (tmp_path / "datasets").glob(".*.hashes.json")
    sources = [files.SourceFile(str(path), path.name, path.stat().st_size, "") for path in sorted(folder.iterdir())]
    for _ in range(2):
        found = files.with_hashes(sources, tmp_path / "memory.json")
        assert [file.version for file in found] == [hash_file(Path(file.path)) for file in sources]
    good = memory.read_bytes()
    for damage in (b"", b"[1]", b"{", b'{"x": 1}'):
        memory.write_bytes(damage)
        assert prepare(spec_of(folder), tmp_path / "datasets") == first
        assert memory.read_bytes() == good


def test_a_small_source_writes_no_cache_of_hashes(folder: Path, tmp_path: Path) -> None:
    dataset = prepare(spec_of(folder), tmp_path / "datasets")
    assert not list(dataset.parent.glob("*.hashes.json"))
