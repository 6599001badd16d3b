"""Table 4 is hours of runs: what has ended is kept, and never made again."""

import pytest

from momentem.reproduce import topic_tables
from momentem.reproduce.datasets import SplitCorpus
from momentem.reproduce.topic_tables import Length, topic_table

from corpora import random_corpus


@pytest.fixture
def tiny(monkeypatch):
    """One sampler and one peer on a hundred documents."""
    split = SplitCorpus(random_corpus(200, 30), random_corpus(40, 30, seed=1))
    monkeypatch.setattr(topic_tables, "CORPORA", {"tiny": lambda: split})
    monkeypatch.setattr(topic_tables, "_peers", lambda length: {"unigram": topic_tables._unigram})


def run_of(value):
    trace = {"iteration": [4, 8], "seconds": [0.1, 0.2], "single": [9.0, value]}
    return trace | {"average": [9.0, value - 1], "pace": 0.1, "divergences": 1}


def test_runs_that_have_ended_are_not_made_again(tiny, tmp_path, monkeypatch):
    length, made = Length(2, 4, 4, 2), []

    def run(*args):
        made.append(args[-1])
        if made == [0, 1]:
            raise KeyboardInterrupt
        return run_of(700.0 + args[-1])

    monkeypatch.setattr(topic_tables, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        topic_table("tiny", length, ("sghmc",), 0, tmp_path)
    report = topic_table("tiny", length, ("sghmc",), 0, tmp_path)
    assert made == [0, 1, 1]
    assert topic_table("tiny", length, ("sghmc",), 0, tmp_path).rows == report.rows
    assert made == [0, 1, 1]
    topic_table("tiny", length._replace(num_draws=6), ("sghmc",), 0, tmp_path)
    assert made == [0, 1, 1, 0, 1]
    assert (tmp_path / "figure1-tiny.png").exists()


@pytest.mark.validate
def test_a_table_of_real_runs(tiny):
    row = topic_table("tiny", Length(1, 4, 4, 2), ("sghmc",), 0, None).rows[0]
    assert 5 < float(row[3]) < 40


def test_rows_are_means_over_seeds_with_their_errors():
    row = topic_tables._row("SGHMC", 0, [run_of(700.0), run_of(704.0)])
    assert row == ["SGHMC", "759", "702.0 ± 2.0", "701.0 ± 2.0", "0.047", "0.1", "2"]
