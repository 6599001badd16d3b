"""Corpora are read from files and texts; what is not a corpus is refused by file and place."""

import sys
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given

from momentem.topics import corpus, split_documents
from momentem.topics.corpus_files import save
from momentem.topics.readers import (
    encode,
    read,
    read_ldac,
    read_matrix_market,
    read_npz,
    read_text,
)

from corpora import (
    TABLE,
    WORDS,
    Trap,
    assert_same,
    dense,
    newsgroups,
    present,
    random_corpus,
    tables,
    write_lines,
)

BANNER = "%%MatrixMarket matrix coordinate integer general\n"
TEXTS = ["The ape saw the bee, the bee.", "An APE and a cat!", "", "Bee or cat; or zebu"]

# --- files -------------------------------------------------------------------------------------


def write_npz(path, matrix=None, **changes):
    """The arrays of a CSR matrix as in the data folder, some replaced, or left out by None."""
    matrix = scipy.sparse.csr_array(TABLE if matrix is None else matrix)
    arrays = {name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}
    arrays = {name: each for name, each in (arrays | changes).items() if each is not None}
    np.savez(path, **arrays)
    return path


def write_ldac(path, table=TABLE):
    lines = []
    for row in np.asarray(table):
        words = np.flatnonzero(row)
        lines.append(" ".join([str(len(words)), *(f"{word}:{row[word]}" for word in words)]) + "\n")
    return write_lines(path, "".join(lines))


def write_matrix_market(path, matrix=TABLE):
    plain = path.with_name("plain.mtx")
    scipy.io.mmwrite(plain, scipy.sparse.coo_array(matrix), symmetry="general")
    return write_lines(path, plain.read_bytes())


def write_scipy(path):
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(TABLE))
    return path


@pytest.mark.parametrize(
    ("name", "write", "reader"),
    [
        ("a.npz", write_npz, read_npz),
        ("scipy.npz", write_scipy, read_npz),
        ("a.ldac", write_ldac, read_ldac),
        ("a.ldac.gz", write_ldac, read_ldac),
        ("a.lda-c", write_ldac, read_ldac),
        ("a.mtx", write_matrix_market, read_matrix_market),
        ("a.mtx.gz", write_matrix_market, read_matrix_market),
    ],
)
def test_files_read_back(tmp_path, name, write, reader):
    path = write(tmp_path / name)
    vocabulary = write_lines(tmp_path / "words.txt", "\n".join(WORDS) + "\n")
    assert_same(reader(path, vocabulary=WORDS), corpus(TABLE, WORDS))
    assert_same(reader(str(path), vocabulary=str(vocabulary)), corpus(TABLE, WORDS))
    assert_same(read(path), corpus(TABLE))
    with pytest.raises(ValueError, match=r"each of the 4 columns, got 2|below num_words = 2"):
        reader(path, vocabulary=["a", "b"])
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / f"absent {name}")


@given(tables)
def test_files_of_any_table(tmp_path_factory, table):
    folder, wanted = tmp_path_factory.mktemp("files"), corpus(table)
    assert_same(read_npz(write_npz(folder / "a.npz", table)), wanted)
    ldac = write_ldac(folder / "a.ldac", table)
    assert_same(read_ldac(ldac, num_words=table.shape[1]), wanted)
    assert_same(read_matrix_market(write_matrix_market(folder / "a.mtx", table)), wanted)


def test_saved_corpora_are_read(tmp_path):
    large = random_corpus()
    save(large, tmp_path)
    assert_same(read(tmp_path), large)


def test_real_matrix_market_with_whole_values(tmp_path):
    path = write_matrix_market(tmp_path / "a.mtx", TABLE.astype(float))
    assert b"real" in path.read_bytes()
    assert_same(read_matrix_market(path), corpus(TABLE))


def test_windows_line_ends_and_a_byte_order_mark(tmp_path):
    path = write_lines(tmp_path / "a.ldac", "2 0:1 1:2\r\n0\r\n")
    vocabulary = write_lines(tmp_path / "words.txt", b"\xef\xbb\xbfape\r\nbee\r\n")
    found = read_ldac(path, vocabulary=vocabulary)
    assert found.vocabulary == ("ape", "bee")
    np.testing.assert_array_equal(dense(found), [[1, 2], [0, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "must have the arrays data, .* got indices, indptr, shape; save"),
        ({"format": np.array("csc")}, "format in .* must be csr, got csc; save matrix.tocsr"),
        ({"data": np.array([2, 1, 3, 1, 5, 1, 1, 0.5])}, r"data in .* got 0\.5 for word 3"),
        ({"data": np.array([2, 1, 3, 1, 5, 1, -1, 1])}, "got -1 for word 2 of document 3"),
        ({"data": np.array(["a"] * 8)}, "data in .* must be a list of numbers"),
        ({"data": np.ones((2, 4))}, r"data in .* and shape \(2, 4\)"),
        ({"data": np.ones(7)}, "same length, got 7 and 8"),
        ({"data": np.array([{}] * 8)}, "Object arrays cannot be loaded"),
        ({"indices": np.arange(8.0)}, "indices in .* whole numbers, got an array of type float64"),
        ({"indices": np.array([0, 2, 1, 3, 0, 4, 2, 3])}, r"\[0, 4\), got 4 at entry 5"),
        ({"indices": np.array([0, 2, 1, -3, 0, 1, 2, 3])}, "got -3 at entry 3"),
        ({"indptr": np.array([0, 2, 2, 8])}, "one number more than the 4 documents, got 4"),
        ({"indptr": np.array([0, 2, 2, 4, 7])}, "end with the number of entries, 8, got 0 and 7"),
        ({"indptr": np.array([1, 2, 2, 4, 8])}, "begin with 0"),
        ({"indptr": np.array([0, 4, 2, 4, 8])}, "not decrease, got 2 after 4 at document 1"),
        ({"indptr": np.array([0, 4, 2, 4, 8], np.uint64)}, "not decrease, got 2 after 4"),
        ({"shape": np.array([4])}, r"shape in .* got \[4\]"),
        ({"shape": np.array([0, 4])}, r"at least one document by one word.* got \[0, 4\]"),
        ({"shape": np.array([4, 2**40])}, "at most 4294967295 words"),
    ],
)
def test_npz_refuses(tmp_path, changes, message):
    path = write_npz(tmp_path / "a.npz", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        read_npz(path)
    assert "a.npz" in str(caught.value)


def test_npz_refuses_other_forms_of_scipy(tmp_path):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csc_array(TABLE))
    with pytest.raises(ValueError, match="must be csr, got csc"):
        read_npz(tmp_path / "a.npz")


def test_npz_refuses_npy(tmp_path):
    np.save(tmp_path / "a.npy", TABLE)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"a\.npz must be an \.npz file"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("2 0:1 1:2\n3 0:1 1:2\n", {}, "line 2 of .* first number says, 3, got 2; it may be cut"),
        ("1 0:1 1:2\n", {}, "line 1 of .* says, 1, got 2"),
        ("2 0:1 1:x\n", {}, "line 1 of .* id:count pairs .* got '2 ... 1:x'"),
        ("2 0:1 1\n", {}, r"got '2 \.\.\. 1'"),
        ("1 0:-1\n", {}, "got '1 ... 0:-1'"),
        ("1 0:1.5\n", {}, "got '1 ... 0:1.5'"),
        ("x 0:1\n", {}, "got 'x'"),
        ("1 0:1\n\n1 0:1\n", {}, "line 2 of .* got ''"),
        ("1 99999999999999999999:1\n", {}, "line 1 of"),
        ("1 9999999999:1\n", {}, "must have ids from 0 to"),
        ("1 0:9999999999\n", {}, "got 9999999999 for word 0 of document 0"),
        ("1 5:1\n", {"num_words": 5}, "line 1 of .* ids below num_words = 5, got 5; give"),
        ("1 1:1\n", {"vocabulary": ["a"]}, "ids below num_words = 1, got 1"),
        ("1 0:1\n", {"vocabulary": ["a"], "num_words": 2}, "each of the 2 columns, got 1"),
        ("0\n", {}, "give num_words"),
        ("", {}, "at least one line, a document, got none"),
        ("1 0:1\n", {"num_words": 0}, "num_words must be a whole number >= 1, got 0"),
        (bytes(range(128, 200)), {}, "line 1 of"),
    ],
)
def test_ldac_refuses(tmp_path, content, options, message):
    path = write_lines(tmp_path / "a.ldac", content)
    with pytest.raises(ValueError, match=message):
        read_ldac(path, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1 of .* got ''"),
        ("2 2 1\n1 1 1\n", "line 1 of .* got '2 2 1'"),
        (BANNER.replace("general", "symmetric") + "2 2 1\n1 1 1\n", "got .*symmetric"),
        (BANNER.replace("integer", "pattern") + "2 2 1\n1 1\n", "got .*pattern"),
        (BANNER.replace("coordinate", "array") + "1 1\n1\n", "got .*array"),
        (BANNER, "numbers of documents, words and entries, got ''"),
        (BANNER + "% a comment\n\n2 2\n1 1 1\n", "got '2 2'"),
        (BANNER + "2 0 0\n", "at least one document by one word, .* got 2 by 0"),
        (BANNER + "2 2 2\n1 1 1\n", "the 2 entries of its header, got 1; it may be cut short"),
        (BANNER + "2 2 1\n1 1 1\n2 2 1\n", "the 1 entries of its header, got 2"),
        (BANNER + "2 2 1\n", "the 1 entries of its header, got 0"),
        (BANNER + "2 2 2\n1 1 1\n3 1 1\n", "entry 2 of .* a document from 1 to 2, got 3"),
        (BANNER + "2 2 1\n1 0 1\n", "entry 1 of .* a word from 1 to 2, got 0"),
        (BANNER + "2 2 1\n1 2 -4\n", r"got -4\.0 for word 1 of document 0"),
        (BANNER + "2 2 1\n1 2 0.5\n", r"got 0\.5 for word 1 of document 0"),
        (BANNER + "2 2 1\n1 2 nan\n", "got nan"),
        (BANNER + "2 2 2\n1 2 1\n1 1\n", "entries of .*: .* 2"),
        (BANNER + "2 2 1\n1 x 1\n", "entries of .* 'x'"),
        (BANNER + "2 2 1\n1.5 1 1\n", r"entries of .* '1\.5'"),
    ],
)
def test_matrix_market_refuses(tmp_path, content, message):
    path = write_lines(tmp_path / "a.mtx", content)
    with pytest.raises(ValueError, match=message):
        read_matrix_market(path)


def test_matrix_market_without_entries(tmp_path):
    path = write_lines(tmp_path / "a.mtx", BANNER + "2 3 0\n")
    np.testing.assert_array_equal(dense(read_matrix_market(path)), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.npz", write_npz),
        ("a.ldac.gz", write_ldac),
        ("a.mtx.gz", write_matrix_market),
    ],
)
def test_cut_and_garbled_archives(tmp_path, name, write):
    """Every cut is found, as the archives end in lengths and sums. Of changed bytes some do not
    matter, such as a time of day; the others are a ValueError, and nothing else."""
    path = write(tmp_path / name)
    content, wanted = path.read_bytes(), read(path)
    rng = np.random.default_rng(0)
    for end in {*rng.integers(1, len(content), 20).tolist(), len(content) - 1}:
        path.write_bytes(content[:end])
        with pytest.raises(ValueError, match=name):
            read(path)
    for where in rng.integers(0, len(content), 150):
        garbled = bytearray(content)
        garbled[where] ^= 1 << rng.integers(8)
        path.write_bytes(garbled)
        try:
            found = read(path)
        except ValueError as error:
            assert name in str(error)  # noqa: PT017
        else:
            assert_same(found, wanted)


@pytest.mark.parametrize(
    ("method", "header"),
    [(zipfile.ZIP_LZMA, None), (zipfile.ZIP_BZIP2, None), (zipfile.ZIP_STORED, b"(")],
)
def test_whatever_a_garbled_archive_raises_is_a_value_error(tmp_path, method, header):
    path = tmp_path / "a.npz"
    write_npz(path)
    with zipfile.ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    if header is not None:
        contents["data.npy"] = contents["data.npy"].replace(b"}", header, 1)
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in contents.items():
            file.writestr(name, content)
    content = bytearray(path.read_bytes())
    if header is None:  # in the first of the packed arrays
        content[45:60] = bytes(15)
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz"):
        read_npz(path)


def test_npz_unpickles_no_object(tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, data=np.array([Trap(tmp_path / "sprung")] * 8, object))
    with pytest.raises(ValueError, match=r"a\.npz"):
        read_npz(path)
    assert not (tmp_path / "sprung").exists()


def test_read_refuses_other_names(tmp_path):
    with pytest.raises(ValueError, match=r"end in \.npz, .* got .*a\.pickle; for other formats"):
        read(tmp_path / "a.pickle")


# --- texts -------------------------------------------------------------------------------------


@pytest.fixture
def sklearn():
    return pytest.importorskip("sklearn")


def in_folder(folder):
    (folder / "texts").mkdir()
    for n, text in reversed(list(enumerate(TEXTS))):
        (folder / f"texts/{n}.txt").write_text(text)
    (folder / "texts/notes.md").write_text("ape ape ape")
    return folder / "texts"


def in_lines(folder):
    return write_lines(folder / "texts.txt", "\n".join(TEXTS) + "\n")


@pytest.mark.parametrize("form", [in_folder, in_lines, lambda _: TEXTS, lambda _: iter(TEXTS)])
def test_texts(sklearn, tmp_path, form):
    found = read_text(form(tmp_path))
    assert found.vocabulary == ("ape", "bee", "cat")  # "saw" and "zebu" are in one document each
    np.testing.assert_array_equal(dense(found), [[1, 2, 0], [1, 0, 1], [0, 0, 0], [0, 1, 1]])


def test_options_of_texts(sklearn, tmp_path):
    assert read_text(TEXTS, min_documents=1).vocabulary == (*("ape", "bee", "cat", "saw", "zebu"),)
    assert read_text(TEXTS, max_words=1).vocabulary == ("bee",)
    assert read_text(TEXTS, 12, 1, ["zebu"], str.split).vocabulary == (
        *("a", "an", "and", "ape", "bee", "bee,", "bee.", "cat!", "cat;", "or", "saw", "the"),
    )
    for path in (in_folder(tmp_path), in_lines(tmp_path)):
        assert_same(read(path), read_text(TEXTS))


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        ([], {}, ValueError, "texts must have at least one document"),
        ([1, 2], {}, TypeError, "texts must be strings, got 1 for document 0"),
        (["ape"], {}, ValueError, "at least min_documents = 2 texts, got 1"),
        (["ape", "bee"], {}, ValueError, "words in 2 documents or more .* lower min_documents"),
        (["the", "the"], {}, ValueError, "give stop_words=None"),
        ("the ape saw", {}, FileNotFoundError, "got 'the ape saw'; for one text, give a list"),
        ("ape " * 2000, {}, FileNotFoundError, "for one text, give a list"),
        (TEXTS, {"max_words": 0}, ValueError, "max_words must be a whole number >= 1, got 0"),
        (TEXTS, {"min_documents": 0}, ValueError, "min_documents must be"),
    ],
)
def test_texts_refuse(sklearn, without_jaxtyping, texts, options, error, message):
    with pytest.raises(error, match=message):
        read_text(texts, **options)


def test_files_of_texts_refuse(sklearn, tmp_path):
    with pytest.raises(ValueError, match=r"folder of \.txt files, must have at least one document"):
        read(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(ValueError, match=r"line 2 of .*a\.txt must be UTF-8"):
        read(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"a\.txt must be UTF-8"):
        read(tmp_path)


def test_encode(sklearn, tmp_path):
    train = read_text(TEXTS)
    assert train.vocabulary is not None
    again, outside = encode(TEXTS, train.vocabulary)
    assert_same(again, train)
    assert outside == 2  # saw, zebu: the stop words are left out as they were
    found, outside = encode(["the zebu and the cat, Cat", "", "the"], train.vocabulary)
    np.testing.assert_array_equal(dense(found), [[0, 0, 2], [0, 0, 0], [0, 0, 0]])
    assert outside == 1
    assert encode(["the zebu"], train.vocabulary, stop_words=None)[1] == 2
    # stop words of the vocabulary are words like others
    found, outside = encode(["the zebu and the cat"], ["the", "cat"])
    np.testing.assert_array_equal(dense(found), [[2, 1]])
    assert outside == 1
    found, outside = encode(["cat; the"], ["cat;"], None, str.split)
    assert (dense(found).tolist(), outside) == ([[1]], 1)
    assert_same(encode(in_lines(tmp_path), train.vocabulary)[0], train)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [(["a", "b", "a"], "none twice, got 'a' 2 times"), ([], "at least one word")],
)
def test_encode_refuses(sklearn, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        encode(["a"], vocabulary)


@pytest.mark.parametrize(
    "call", [lambda: read_text(["a text"] * 2), lambda: encode(["a text"], ["text"])]
)
def test_extra_is_named(monkeypatch, call):
    module = "sklearn.feature_extraction.text"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module} is needed .* 'momentem\[topics\]'"):
        call()


# --- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("20news_nvdm2000", (1_138_254, 721_643)), ("20news_stem2000", (880_801, 554_794))],
)
def test_newsgroups(data, name, tokens):
    """Tokens as in the README of the data."""
    train, test = newsgroups(data, name)
    assert (train.num_tokens, test.num_tokens) == tokens


def test_reuters(data):
    path = present(data / "reuters21578/reuters21578_stem10000.npz")
    first, last = split_documents(read(path))
    assert (first.num_documents, last.num_documents) == (12_947, 8_631)
    assert (first.num_tokens, last.num_tokens) == (883_721, 517_857)


def test_ldac_of_the_toy_corpus(data):
    folder = data / "reuters_lda395"
    path = present(folder / "reuters.ldac.gz")
    found = read_ldac(path, vocabulary=present(folder / "reuters.tokens.gz"))
    assert (found.num_documents, found.num_words) == (395, 4258)
