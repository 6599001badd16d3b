"""Corpora are checked, saved and split; what is not a corpus is refused by name."""

import io
import json
import math
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from momentem.files import digest_of, hash_file
from momentem.topics import corpus, corpus_files, split_documents, split_words
from momentem.topics.corpus_files import load, save

from corpora import (
    TABLE,
    WORDS,
    Trap,
    assert_few_were_read,
    assert_same,
    dense,
    random_corpus,
    tables,
    watched,
    write_lines,
)

# --- a corpus ----------------------------------------------------------------------------------


def test_table_and_its_parts():
    small = corpus(TABLE, WORDS)
    assert (small.num_documents, small.num_words, small.num_tokens) == (4, 4, 70_010)
    assert small.starts.dtype == np.int64
    assert small.words.dtype == np.uint16
    assert small.counts.dtype == np.uint32  # 70,000 needs it
    np.testing.assert_array_equal(small.lengths(), [2, 0, 2, 4])
    words, counts = small.document(2)
    assert [small.vocabulary[word] for word in words] == ["bee", "dog"]
    np.testing.assert_array_equal(counts, [3, 1])
    assert all(part.size == 0 for part in small.document(1))
    np.testing.assert_array_equal(dense(small), TABLE)
    assert corpus(TABLE[:3]).counts.dtype == np.uint16


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "lil", "dok", "dia", "bsr"])
@pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint32])
def test_every_sparse_format(form, kind):
    sparse = scipy.sparse.coo_array(TABLE.astype(kind)).asformat(form)
    assert_same(corpus(sparse, WORDS), corpus(TABLE, WORDS))


@pytest.mark.parametrize("num_words", [1 << 16, (1 << 16) + 1])
def test_ids_are_as_narrow_as_the_vocabulary_allows(num_words):
    last = scipy.sparse.coo_array(([1], ([0], [num_words - 1])), shape=(1, num_words))
    large = corpus(last)
    assert large.words.dtype == (np.uint16 if num_words == 1 << 16 else np.uint32)
    assert large.words[0] == num_words - 1


def test_entries_twice_are_added_and_zeros_dropped():
    # in the bytes of the data 200 + 100 would be 44
    values = np.array([200, 7, 100, 0, 1], np.uint8)
    documents, words = [0, 1, 0, 1, 1], [2, 1, 2, 0, 0]
    found = corpus(scipy.sparse.coo_array((values, (documents, words)), shape=(3, 3)))
    np.testing.assert_array_equal(dense(found), [[0, 0, 300], [1, 7, 0], [0, 0, 0]])
    np.testing.assert_array_equal(found.lengths(), [1, 2, 0])


@given(tables)
def test_table_to_corpus_and_back(table):
    found = corpus(table)
    np.testing.assert_array_equal(dense(found), table)
    assert_same(corpus(scipy.sparse.csc_array(table)), found)
    assert (found.counts > 0).all()


def test_sums_of_single_precision_are_exact():
    values = np.array([2**24, 1], np.float32)  # whose sum has no place in 24 bits
    twice = scipy.sparse.coo_array((values, ([0, 0], [0, 0])), shape=(1, 1))
    assert corpus(twice).counts == [2**24 + 1]


def test_argument_is_not_changed():
    sparse = scipy.sparse.csr_array(
        (np.array([1, 2, 0]), np.array([2, 0, 1]), np.array([0, 3])), (1, 3)
    )
    corpus(sparse)
    np.testing.assert_array_equal(sparse.indices, [2, 0, 1])
    np.testing.assert_array_equal(sparse.data, [1, 2, 0])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-1, "-1"), (0.5, "0.5"), (np.nan, "nan"), (np.inf, "inf"), (2**32, "4294967296")],
)
@pytest.mark.parametrize("form", [np.array, scipy.sparse.csr_array, scipy.sparse.coo_array])
def test_what_is_not_a_count_is_refused(value, shown, form):
    table = np.array([[1, 0, 2], [0, 3, value]])
    with pytest.raises(
        ValueError, match=rf"counts must be .* got {shown}[.0]* for word 2 of document 1; give"
    ):
        corpus(form(table))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble])
def test_floats_of_any_width(kind):
    assert_same(corpus(TABLE[:3].astype(kind)), corpus(TABLE[:3]))
    too_large = np.inf if kind is np.float16 else 2.0**32
    with pytest.raises(ValueError, match=r"got (4294967296\.0|inf) for word 0 of"):
        corpus(np.array([[too_large]], kind))


def test_flags_are_counts():
    assert_same(corpus(TABLE > 0), corpus((TABLE > 0).astype(int)))


def test_sums_that_are_too_large_and_sums_that_hide():
    def twice(*values):
        return scipy.sparse.coo_array((values, ([1, 1], [2, 2])), shape=(2, 3))

    with pytest.raises(ValueError, match="got 4294967296 for word 2 of document 1"):
        corpus(twice(2**32 - 1, 1))
    with pytest.raises(ValueError, match=r"got 0\.5"):
        corpus(twice(0.5, 0.5))
    with pytest.raises(ValueError, match="got -1"):
        corpus(twice(2, -1))
    assert corpus(twice(2**32 - 2, 1)).counts == [2**32 - 1]


@pytest.mark.parametrize(
    ("table", "vocabulary", "error", "message"),
    [
        (np.ones(3), None, ValueError, r"at least one row.*got shape \(3,\)"),
        (np.ones((0, 3)), None, ValueError, r"got shape \(0, 3\)"),
        (np.ones((3, 0)), None, ValueError, r"got shape \(3, 0\)"),
        (scipy.sparse.coo_array(np.ones(3)), None, ValueError, r"got shape \(3,\)"),
        ([["a"]], None, TypeError, "counts must be numbers"),
        (np.ones((1, 1), complex), None, TypeError, "counts must be numbers"),
        (TABLE, WORDS[:3], ValueError, "each of the 4 columns, got 3"),
        (TABLE, ["a", "b", "", "d"], ValueError, "must be a word, .* got '' at 2"),
        (TABLE, ["a", "b\nc", "c", "d"], ValueError, "without line breaks, got 'b.*' at 1"),
        (TABLE, [1, 2, 3, 4], ValueError, "must be a word, .* got 1 at 0"),
    ],
)
def test_what_is_not_a_table_is_refused(without_jaxtyping, table, vocabulary, error, message):
    with pytest.raises(error, match=message):
        corpus(table, vocabulary)


@pytest.mark.parametrize(
    ("content", "message"),
    [("a\n\nc\nd\n", "every line of .* got '' at 2"), (b"a\n\xff\nc\nd\n", "line 2 of .* UTF-8")],
)
def test_vocabulary_file_refuses(tmp_path, content, message):
    path = write_lines(tmp_path / "words.txt", content)
    with pytest.raises(ValueError, match=message):
        corpus(TABLE, path)


def test_more_words_than_ids():
    wide = scipy.sparse.coo_array(([1], ([0], [0])), shape=(1, 2**32))
    with pytest.raises(ValueError, match="at most 4294967295 words, got 4294967296"):
        corpus(wide)


def test_take():
    large = random_corpus()
    indices = np.array([7, 3, 3, 199, 0])
    np.testing.assert_array_equal(dense(large.take(indices)), dense(large)[indices])
    assert_same(large.take(range(large.num_documents)), large)
    assert large.take([]).num_documents == 0
    assert_same(large.take(np.array([5], np.uint8)), large.take([5]))


def test_take_reads_no_other_documents():
    large = watched(random_corpus())
    large.take([150, 2])
    assert_few_were_read(large, large.lengths()[[150, 2]].sum())


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ([0, 4], IndexError, r"must lie in \[0, 4\), got 4"),
        ([-1], IndexError, "got -1"),
        ([0.5], TypeError, "whole numbers"),
        ([True, False, True, False], TypeError, r"np\.flatnonzero\(mask\)"),
        (2, TypeError, r"shape \(\)"),
    ],
)
def test_take_refuses(indices, error, message):
    with pytest.raises(error, match=message):
        corpus(TABLE).take(indices)


@pytest.mark.parametrize("n", [-1, 4])
def test_document_refuses(n):
    with pytest.raises(IndexError, match=rf"n must lie in \[0, 4\), got {n}"):
        corpus(TABLE).document(n)


def test_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError, match=r"scipy.sparse is needed .* 'momentem\[topics\]'"):
        corpus(TABLE).to_csr()


# --- saved -------------------------------------------------------------------------------------


def test_save_and_load(tmp_path):
    large = random_corpus()
    save(large, tmp_path / "new/folder")
    found = load(tmp_path / "new/folder")
    assert_same(found, large)
    assert all(isinstance(part, np.memmap) for part in (found.starts, found.words, found.counts))
    assert not list(tmp_path.rglob("*.part"))


@given(tables)
def test_save_and_load_any_table(tmp_path_factory, table):
    folder, wanted = tmp_path_factory.mktemp("saved"), corpus(table)
    save(wanted, folder)
    assert_same(load(folder), wanted)


def test_saved_over_itself_and_over_another(tmp_path):
    save(corpus(TABLE, [*WORDS[:3], "\u2028d\u00f6g\x0b"]), tmp_path)
    found = load(tmp_path)
    assert found.vocabulary is not None
    assert found.vocabulary[3] == "\u2028d\u00f6g\x0b"
    save(found, tmp_path)  # from the very files
    assert_same(load(tmp_path), found)
    save(corpus(TABLE[:2]), tmp_path)
    assert_same(load(tmp_path), corpus(TABLE[:2]))
    assert not (tmp_path / "vocabulary.txt").exists()


def test_interrupted_save_is_not_a_corpus(tmp_path, monkeypatch):
    save(corpus(TABLE), tmp_path)

    def full(*args, **options):
        raise OSError("disk full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="disk full"):
        save(corpus(TABLE), tmp_path)
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        load(tmp_path)


def test_documents_of_a_mapped_corpus(tmp_path):
    large = random_corpus()
    save(large, tmp_path)
    mapped = load(tmp_path)
    taken = mapped.take([150, 2, 9])
    assert_same(taken, large.take([150, 2, 9]))
    assert not isinstance(taken.words, np.memmap)
    first, last = split_documents(mapped)
    assert isinstance(first.words, np.memmap)
    assert isinstance(last.words, np.memmap)
    for found, wanted in zip(split_words(mapped, seed=3), split_words(large, seed=3), strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("name", ["starts.npy", "words.npy", "counts.npy"])
@pytest.mark.parametrize("change", ["cut", "header", "open", "empty", "absent", "longer", "other"])
def test_load_refuses_damaged_arrays(tmp_path, name, change):
    save(corpus(TABLE), tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    if change == "absent":
        path.unlink()
    elif change == "other":
        np.save(path, np.load(path)[:-1])
    else:
        changed = {
            "cut": content[:-1],
            "header": content[:40],
            "open": content.replace(b"}", b"(", 1),
            "empty": b"",
            "longer": content + b"0",
        }
        path.write_bytes(changed[change])
    with pytest.raises(ValueError, match=name):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("starts", np.array([0, 2, 2, 4, 7]), "end with the number of entries, 8, got 0 and 7"),
        ("starts", np.array([0, 4, 2, 4, 8]), "not decrease, got 2 after 4 at document 1"),
        ("starts", np.array([0, 2, 2, 4, 8], np.int32), "type int64, .* got type int32"),
        ("words", np.zeros(8), "type uint16 or uint32, .* got type float64"),
        ("counts", np.ones((8, 1), np.uint16), r"got type uint16 and shape \(8, 1\)"),
    ],
)
def test_load_refuses_other_arrays(tmp_path, name, array, message):
    save(corpus(TABLE), tmp_path)
    np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_load_refuses_archives(tmp_path):
    save(corpus(TABLE), tmp_path)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("a.npy", b"")
    (tmp_path / "words.npy").write_bytes(packed.getvalue())
    with pytest.raises(ValueError, match=r"words\.npy"):
        load(tmp_path)


def test_load_unpickles_no_object(tmp_path):
    save(corpus(TABLE), tmp_path / "saved")
    np.save(tmp_path / "saved/words.npy", np.array([Trap(tmp_path / "sprung")] * 8, object))
    with pytest.raises(ValueError, match=r"words\.npy"):
        load(tmp_path / "saved")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "must be of 'momentem corpus', version 2, got .*other"),
        ({"version": 1}, "version 1, which had no SHA-256"),
        ({"version": 3}, "version 2, got .*3"),
        ({"num_documents": 5}, r"starts\.npy must have 6 numbers"),
        ({"num_entries": 9}, r"words\.npy must have 9 numbers"),
        ({"num_words": 0}, "num_words in .* must be a int >= 1, got 0"),
        ({"num_words": 5}, "each of the 5 columns, got 4"),
        ({"num_entries": -1}, ">= 0, got -1"),
        ({"num_entries": "8"}, "got '8'"),
        ({"num_documents": True}, "got True"),
        ({"num_documents": None}, "got None"),
        ({"has_vocabulary": 1}, "has_vocabulary in .* got 1"),
    ],
)
def test_load_refuses_other_meta(tmp_path, changes, message):
    save(corpus(TABLE, WORDS), tmp_path)
    sign(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def sign(folder, **changes):
    """Change what meta.json says, and the hashes in it, as an attacker can."""
    path = folder / "meta.json"
    meta = json.loads(path.read_text()) | changes
    del meta["sha256"]
    if isinstance(meta["files"], dict) and "files" not in changes:
        meta["files"] = {name: hash_file(folder / name) for name in meta["files"]}
    path.write_text(json.dumps({"sha256": digest_of(json.dumps(meta)), **meta}))


@pytest.mark.parametrize("name", ["starts.npy", "words.npy", "counts.npy", "vocabulary.txt"])
def test_a_flipped_bit_is_noticed(tmp_path, name):
    save(corpus(TABLE, WORDS), tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"SHA-256|must not decrease|end with the number"):
        load(tmp_path)


def test_a_flipped_bit_in_meta_is_noticed(tmp_path):
    save(corpus(TABLE), tmp_path)
    path = tmp_path / "meta.json"
    path.write_text(path.read_text().replace('"num_words": 4', '"num_words": 5'))
    with pytest.raises(ValueError, match="must have the SHA-256 that it names"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("words", [0, 2, 1, 3, 0, 1, 2, 4], "words below 4"),
        ("words", [2, 0, 1, 3, 0, 1, 2, 3], "must ascend within a document, .* at entry 1"),
        ("words", [0, 2, 1, 3, 0, 1, 1, 3], "at entry 6"),
        ("counts", [2, 1, 3, 0, 5, 1, 1, 1], "counts of at least 1"),
    ],
)
def test_what_is_signed_is_checked_too(tmp_path, name, array, message):
    save(corpus(TABLE), tmp_path)
    kind = np.load(tmp_path / f"{name}.npy").dtype
    np.save(tmp_path / f"{name}.npy", np.array(array, kind))
    sign(tmp_path)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_files_outside_the_folder_and_nests_are_refused(tmp_path):
    save(corpus(TABLE), tmp_path / "saved")
    path = tmp_path / "saved/words.npy"
    path.rename(tmp_path / "outside.npy")
    path.symlink_to(tmp_path / "outside.npy")
    with pytest.raises(ValueError, match="a file outside the folder"):
        load(tmp_path / "saved")
    (tmp_path / "saved/meta.json").write_text('{"a":' * 10**4)
    with pytest.raises(ValueError, match="nested too deep"):
        load(tmp_path / "saved")


def test_arrays_are_written_as_numpy_writes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "BLOCK", 3)
    save(corpus(TABLE), tmp_path)
    for name in ("starts", "words", "counts"):
        np.save(tmp_path / "again.npy", np.load(tmp_path / f"{name}.npy"))
        assert (tmp_path / "again.npy").read_bytes() == (tmp_path / f"{name}.npy").read_bytes()
    assert_same(load(tmp_path), corpus(TABLE))


@pytest.mark.parametrize("content", ["", "{", "[]", "3", b"\xff"])
def test_load_refuses_what_is_not_meta(tmp_path, content):
    save(corpus(TABLE), tmp_path)
    write_lines(tmp_path / "meta.json", content)
    with pytest.raises(ValueError, match=r"meta\.json must be"):
        load(tmp_path)


# --- splits ------------------------------------------------------------------------------------


def test_first_and_last_documents():
    large = random_corpus(num_documents=21)
    first, last = split_documents(large)
    np.testing.assert_array_equal(dense(first), dense(large)[:13])  # 12.6
    np.testing.assert_array_equal(dense(last), dense(large)[13:])
    assert first.starts[0] == last.starts[0] == 0


@given(tables, st.floats(0.05, 0.95), st.integers(0, 1000))
def test_split_words_adds_up(table, share, seed):
    whole = corpus(table)
    observed, held_out = split_words(whole, share, seed)
    np.testing.assert_array_equal(dense(observed) + dense(held_out), table)
    for part in (observed, held_out):
        assert (part.counts > 0).all()
        assert part.counts.dtype == whole.counts.dtype
        assert part.num_documents == whole.num_documents
        assert part.num_words == whole.num_words
    assert_same(split_words(whole, share, seed)[0], observed)


def test_split_words_by_token():
    """Each count is thinned by a binomial draw. The limits are 5 standard errors, of 20,000 counts:
    a false alarm in 10^6."""
    num, share = 20_000, 0.8
    observed, _ = split_words(corpus(np.full((num, 1), 3)), share, seed=1)
    found = np.bincount(dense(observed).ravel(), minlength=4)
    wanted = np.array([math.comb(3, k) * share**k * (1 - share) ** (3 - k) for k in range(4)])
    error = 5 * np.sqrt(num * wanted * (1 - wanted))
    assert (abs(found - num * wanted) < error).all()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, math.nan])
@pytest.mark.parametrize("split", [split_documents, split_words])
def test_splits_refuse_shares(split, share):
    with pytest.raises(ValueError, match=f"share must lie between 0 and 1, got {share}"):
        split(corpus(TABLE), share)


def test_split_documents_refuses_an_empty_side():
    with pytest.raises(ValueError, match=r"either side, got 0\.1 of 4 documents, that is 0"):
        split_documents(corpus(TABLE), 0.1)


@pytest.mark.parametrize(
    "call",
    [
        split_documents,
        split_words,
        lambda table: save(table, "never made"),
    ],
)
def test_tables_must_be_made_corpora_first(without_jaxtyping, call):
    with pytest.raises(TypeError, match=r"(?s)corpus must be a Corpus, got .* make one"):
        call(TABLE)
    assert not Path("never made").exists()


def test_frequencies_of_words():
    np.testing.assert_array_equal(
        corpus([[2, 0, 1], [0, 0, 0], [1, 3, 0]]).frequencies(), [3, 3, 1]
    )
