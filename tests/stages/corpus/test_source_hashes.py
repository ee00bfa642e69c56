"""stages/data/source_hashes.py: cached hashes of a large source equal freshly computed ones."""

import os
from pathlib import Path

import pytest

from stages.checkpoint.files import hash_file, hash_files
from stages.corpus import corpus as corpus_module
from stages.corpus import files
from stages.corpus.prepare import prepare
from stages.data.spec import DataSpec


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for number in range(30):
        (tmp_path / f"source/{number}.txt").write_text(f"text {number}")
    return tmp_path / "source"


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


def spec_of(source: Path, **values: object) -> DataSpec:
    return DataSpec.model_validate({"source": str(source), "vocab_size": 300, "validation_fraction": 0.2} | values)


def test_a_large_source_is_hashed_once_and_later_only_its_changed_files(
    source: Path, tmp_path: Path, hashed: list[str]
) -> None:
    first = prepare(spec_of(source), tmp_path / "datasets")
    assert len(hashed) == 30
    hashed.clear()
    assert prepare(spec_of(source), tmp_path / "datasets") == first
    assert hashed == []
    os.utime(source / "3.txt", (0, 0))
    assert prepare(spec_of(source), tmp_path / "datasets") == first
    assert hashed == ["3.txt"]
    hashed.clear()
    (source / "4.txt").write_text("other 4")
    second = prepare(spec_of(source), tmp_path / "datasets")
    assert (second != first, hashed) == (True, ["4.txt"])


@pytest.mark.parametrize("damage", [b"", b"[1]", b"{", b'{"x": 1}'])
def test_a_damaged_cache_of_hashes_is_written_again(
    source: Path, tmp_path: Path, hashed: list[str], damage: bytes
) -> None:
    first = prepare(spec_of(source), tmp_path / "datasets")
    [memory] = (tmp_path / "datasets").glob(".*.hashes.json")
    good = memory.read_bytes()
    memory.write_bytes(damage)
    assert prepare(spec_of(source), tmp_path / "datasets") == first
    assert memory.read_bytes() == good


def test_the_cache_holds_the_hash_of_each_file(source: Path, tmp_path: Path) -> None:
    sources = [files.SourceFile(str(path), path.name, path.stat().st_size, "") for path in sorted(source.iterdir())]
    for _ in range(2):
        hashed = files.with_hashes(sources, tmp_path / "memory.json")
        assert [file.version for file in hashed] == [hash_file(Path(file.path)) for file in sources]


def test_a_small_source_writes_no_cache_of_hashes(source: Path, tmp_path: Path) -> None:
    dataset = prepare(spec_of(source), tmp_path / "datasets")
    assert not list(dataset.parent.glob("*.hashes.json"))
