"""stages/corpus/records.py: the documents in files of every kind, and records without one."""

import gzip
import io
import json
import tarfile

import fsspec
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from stages.corpus import corpus as corpus_module
from stages.corpus import records
from stages.corpus.corpus import Skipped, open_corpus
from stages.corpus.prepare import prepare
from stages.corpus.tasks import Progress
from stages.data.dataset import verify_dataset
from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import spec_of, texts

MARK = b"\xef\xbb\xbf"
KINDS = ["d.JSONL", "d.ndjson", "d.jsonl.zst", "D.JSON.GZ", "d.parquet", "d.tar", "d.tar.gz", "d.tgz", "d.tar.zst"]


def tar(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return content.getvalue()


def table(**columns: object) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), content, row_group_size=2)
    return content.getvalue()


def file_of(name: str, documents: list[str]) -> bytes:
    """The content of a file of the kind that its name says, with documents under `body` and much else."""
    lines = [MARK + json.dumps({"body": text, "id": 7}).encode() for text in documents]
    if name.endswith(".parquet"):
        return table(id=range(len(documents)), body=pyarrow.array(documents).dictionary_encode())
    if ".t" not in name:
        return MARK + b"\n" + b"\n\n".join(lines)
    members = {"0.v1.txt": b"passed over: its ending is .v1.txt", "pictures/0.jpg": b"\xff\xd8"}
    for number, text in enumerate(documents):
        of_text = {"txt": text.encode(), "json": b'{"body": "its caption"}', "jpg": b"\xff\xd8"}
        of_sample = of_text if number % 2 else {"meta.json": b"{}", "json": lines[number]}
        members |= {f"a/{number}.{ending}": content for ending, content in of_sample.items()}
    return tar(members)


@pytest.mark.parametrize("folder", ["{tmp}/folder", "memory://records/{name}"])
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_file_holds_documents_without_byte_order_mark(tmp_path, name, folder):
    folder = folder.format(tmp=tmp_path, name=name)
    content = file_of(name, ["\ufefféén\r\n", "", "two\n\nparagraphs\ufeff", " \n", "\ufeff", "\ufeffthree"])
    compression = "gzip" if name.endswith("tgz") else "infer"
    for mode, part in (("wb", content[:20]), ("ab", content[20:])):  # two frames, as parallel compressors write them
        with fsspec.open(f"{folder}/{name}", mode, compression=compression) as file:
            file.write(part)
    for source in (folder, f"{folder}/{name}", f"{folder}/[dD]*"):
        assert texts(DataSpec(source=source, text_key="body")) == ["één\r\n", "two\n\nparagraphs\ufeff", "three"]


@settings(max_examples=60)
@given(st.text(st.sampled_from("ab \n\r\té€𝄞"), max_size=300))
def test_a_file_is_cut_into_pieces_of_whole_lines_that_join_to_its_text(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE_CHARACTERS", 20)
        pieces = list(records.pieces(io.StringIO(text, newline="\n")))
    assert "".join(pieces) == text
    for piece in pieces[:-1]:
        assert 20 <= len(piece) < 40
        assert piece.endswith("\n") or max(map(len, piece.split("\n"))) >= 20


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_only_a_long_file_of_a_folder_is_cut_and_a_separator_cuts_wherever_it_occurs(tmp_path, monkeypatch, ending):
    def found(content: str, name: str = "", separator: str | None = None) -> list[str]:
        with fsspec.open(tmp_path / f"a.{ending}", "wb", compression="infer") as file:
            file.write(content.encode())
        return texts(DataSpec(source=str(tmp_path / name), document_separator=separator))

    monkeypatch.setattr(records, "PIECE_CHARACTERS", 18)
    lines = "\ufeffa line of text\r\n" * 50
    assert found(lines) == [lines[1:]]
    size = (tmp_path / f"a.{ending}").stat().st_size
    for longest, num_pieces in ((size, 1), (size - 1, 25)):
        monkeypatch.setattr(records, "LONG_FILE_BYTES", longest)
        assert len(found(lines)) == num_pieces
    assert len(found("a line of text\n" * 50, f"a.{ending}")) == 25, "a single file is cut however short"
    monkeypatch.setattr(records, "READ_BYTES", 4)
    separated = found("\ufeffone\n\n==\ntwo" + "x" * 30 + "==\ufeffthree\ufeff====", separator="==")
    assert separated == ["one\n\n", "\ntwo" + "x" * 30, "three\ufeff"]
    monkeypatch.setattr(records, "LONGEST_DOCUMENT_CHARACTERS", 10)
    with pytest.raises(DataError, match=r"data\.document_separator: '==' does not occur in 12 characters"):
        found("x" * 20, separator="==")


UTF_8 = b"=====\n" * 5_000 + b"caf\xe9\n" + b"=====\n" * 5_000
TAR = tar({f"{number}.txt": b"x" * 500 for number in range(4)})
LATIN_1 = pyarrow.array([b"fine", b"caf\xe9"]).cast(pyarrow.string(), safe=False)


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("d.jsonl", b'{"text": "a"}\n{"text": "cut', "not JSON", r"data\.source: .*d\.jsonl line 2 is not JSON"),
        ("d.jsonl", b'{"texts": "a"}', "no text", r"data\.text_key: .* line 1 is {\"texts\":\"a\"}; .* under 'text'"),
        ("d.jsonl", b'{"text": null}', "null", r"data\.text_key: .* line 1 is {\"text\":null}; "),
        ("d.jsonl", b'{"text": "\xe9"}', "not UTF-8", r"line 1 is not UTF-8 text .*: iconv -f latin1 -t utf-8 .*/d\.j"),
        ("a.txt", UTF_8, "not UTF-8", r"line 5,001 is not UTF-8 text \(byte 0xe9\); .*: iconv .* {tmp}/a\.txt > NEW$"),
        ("a.txt.gz", gzip.compress(UTF_8), "not UTF-8", r"a\.txt\.gz line 5,001 is not UTF-8 text \(byte 0xe9\)$"),
        ("d.tar", tar({"1.json": b"{}"}), "no text", r"data\.text_key: .*d\.tar member 1\.json is {}; it must"),
        ("d.parquet", table(text=["a", None]), "null", r"data\.text_key: .* row 2 has null under 'text'"),
        ("d.parquet", table(text=LATIN_1), "not UTF-8", r"data\.source: .* row 2 is not UTF-8 text"),
        ("d.parquet", table(t=["a"], id=[1]), None, r"data\.text_key: .* has no column of text 'text'; .*: t$"),
        ("a.gz", gzip.compress(b"text" * 1000)[:-10], None, r"data\.source: .*/a\.gz cannot be read"),
        ("d.tar", tar({"1.md": b"a"}), None, r"data\.source: .*d\.tar is a tar archive without members that end in"),
        ("d.tar", TAR[:1948], None, r"data\.source: .*d\.tar cannot be read"),  # in a member
        ("d.tar", TAR[:2048], None, r"cannot be read \(the archive is damaged or cut off at byte 2,048"),
        ("d.tar", TAR[:2048] + b"\xff" * 512 + TAR[2560:], None, r"the archive is damaged or cut off at byte 2,048"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_bad_record_is_an_error_or_counted_and_a_damaged_file_is_an_error(tmp_path, name, content, kind, message):
    (tmp_path / name).write_bytes(content)
    for separator in (None, "====="):
        spec = DataSpec(source=str(tmp_path), document_separator=separator)
        with pytest.raises(DataError, match=message.replace("{tmp}", str(tmp_path))):
            texts(spec)
    if kind:
        corpus = open_corpus(spec.model_copy(update={"on_bad_record": "skip"}))
        list(corpus.documents(corpus.files, None, skipped=(skipped := Skipped(corpus.spec))))
        assert skipped.records.counts == {kind: 1}


@pytest.mark.slow
def test_skipped_records_are_counted_and_limited_across_files_and_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 1000)
    good = [b'{"text": "Document %d of the lines."}' % number for number in range(60)]
    bad = [b'{"text": "cut of', b'{"texts": "a"}', b'["text"]', b'{"text": null}']
    (source := tmp_path / "texts").mkdir()
    (source / "a.jsonl").write_bytes(b"\n".join([good[0], *bad, b"", b'{"text": ""}', *good[1:]]))
    (source / "b.jsonl").write_bytes(b"\n".join([b"{}", b"}", *good[:1]]))
    (source / "d.txt").write_bytes(b"caf\xe9")
    spec = spec_of(source, on_bad_record="skip", most_bad_records=7)
    assert texts(spec) == [f"Document {number} of the lines." for number in [*range(60), 0]]
    log, places = tmp_path / "log.txt", [("a", 2, "not JSON"), ("a", 3, "no text"), ("a", 4, "no text")]
    places += [("a", 5, "null"), ("b", 1, "no text")]
    first = tuple(f"{source}/{name}.jsonl line {line} ({kind})" for name, line, kind in places)
    counts = {"not JSON": 2, "no text": 3, "null": 1, "not UTF-8": 1}
    for workers in (1, 2):
        same = spec.model_copy(update={"workers": workers})
        manifest = verify_dataset(prepare(same, tmp_path / f"datasets-{workers}", progress=Progress(log)))
        assert (manifest.skipped.counts, manifest.skipped.first) == (counts, first)
    assert "skipped 7 bad records (2 not JSON, 3 no text, 1 null, 1 not UTF-8): " in log.read_text()
    with pytest.raises(DataError, match=r"data\.most_bad_records: the source has more than 6 bad records, such as "):
        prepare(spec.model_copy(update={"most_bad_records": 6}), tmp_path / "none")
    assert not [path for path in (tmp_path / "none").iterdir() if path.is_dir()]
