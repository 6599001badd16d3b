"""Table 4 and figure 1: held-out perplexity of topics, the paper's samplers and what else there is.

Peers get the same training documents and the same split of test words. Their priors are as a user
would set them, and their test documents are folded in by the peer's own posterior mean, but for
collapsed Gibbs sampling, whose topics and weights are measured as ours are.
"""

import importlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from momentem.reproduce import datasets
from momentem.reproduce.datasets import SplitCorpus
from momentem.reproduce.reports import Report
from momentem.run.figures import new_figure, saved
from momentem.topics._corpus import Corpus, split_words
from momentem.topics._fit import fit
from momentem.topics.evaluation import Perplexity, unigram_perplexity
from momentem.topics.model import make_model
from momentem.topics.runs import join
from momentem.topics.samplers import SAMPLERS as KNOWN

__all__ = ["figure1", "table4", "topic_table"]

SAMPLERS = tuple(name for name in KNOWN if name not in ("sgnht-tuned", "sg-nphmc-tuned"))
NAMES = {name: name.upper().replace("-TUNED", "-EM, noise") for name in SAMPLERS}

# perplexities on 20-Newsgroups and RCV1, seconds per iteration on the former, as printed
PAPER = {
    "SGHMC": (759, 996, 0.047),
    "SGHMC-EM": (738, 972, 0.047),
    "SGNHT": (757, 979, 0.045),
    "SGNHT-EM": (719, 968, 0.045),
    "SGR-NPHMC": (723, 952, 0.410),
    "SG-NPHMC": (714, 958, 0.049),
    "SG-NPHMC-EM": (712, 947, 0.049),
}


class Length(NamedTuple):
    """How long a run is: warm-up and draws are those of every chain, one after the other."""

    num_seeds: int
    num_warmup: int
    num_draws: int
    thin: int
    num_chains: int = 1


FULL, QUICK = Length(2, 1500, 1500, 100), Length(2, 300, 150, 10)
CHAINS = Length(2, 450, 150, 50, num_chains=5)  # as many iterations as FULL, and as many samples
CHAINED = ("sghmc", "sghmc-tuned")  # the others differ by tenths
CORPORA: dict[str, Callable[[], SplitCorpus]] = {
    "20news-nvdm": lambda: datasets.twenty_news("nvdm"),
    "20news-stem": lambda: datasets.twenty_news("stem"),
    "reuters": datasets.reuters,
}


def table4(is_quick: bool, seed: int, folder: Path | None) -> list[Report]:
    """All three corpora, and the first by several chains.

    Args:
        is_quick: 450 iterations instead of 3,000, and one chain only.
        seed: the first.
        folder: for figure 1; None draws nothing.
    """
    length = QUICK if is_quick else FULL
    reports = [topic_table(name, length, SAMPLERS, seed, folder) for name in CORPORA]
    if not is_quick:
        reports.append(topic_table("20news-nvdm", CHAINS, CHAINED, seed, folder))
    return reports


def figure1(is_quick: bool, seed: int, folder: Path | None) -> list[Report]:
    """20-Newsgroups alone, perplexity against iterations and seconds.

    Args:
        is_quick: 450 iterations instead of 3,000.
        seed: the first.
        folder: for the picture; None draws nothing.
    """
    return [topic_table("20news-nvdm", QUICK if is_quick else FULL, SAMPLERS, seed, folder)]


def topic_table(
    name: str, length: Length, samplers: tuple[str, ...], seed: int, folder: Path | None
) -> Report:
    """One corpus, samplers and every peer, said as they end: hours, at the paper's length.

    Args:
        name: one of CORPORA.
        length: of every run.
        samplers: of SAMPLERS.
        seed: the first.
        folder: for the picture, and for runs as they end, which are not made again; None writes
            nothing.
    """
    train, test = CORPORA[name]()
    observed, held_out = split_words(test, 0.8, seed=0)
    label = name if length.num_chains == 1 else f"{name}-chains"

    def run_of(each: str, seed: int) -> dict[str, Any]:
        made = partial(_run, each, train, observed, held_out, length, seed)
        run = _once(folder, f"{label}-{each}-{'-'.join(map(str, length[1:]))}-seed-{seed}", made)
        found = f"{run['single'][-1]:.1f}, average {run['average'][-1]:.1f}"
        print(f"{label} {NAMES[each]} seed {seed}: {found}; {run['pace']:.3g} s", flush=True)
        return run

    # seeds in turn, so that a table that is cut off has rows for all samplers
    seeds = range(seed, seed + length.num_seeds)
    pairs = {(s, each): run_of(each, s) for s in seeds for each in samplers}
    runs = {each: [pairs[s, each] for s in seeds] for each in samplers}
    column = 1 if name == "reuters" else 0
    rows = [_row(NAMES[each], column, found) for each, found in runs.items()]
    for peer, measure in _peers(length).items():
        made = partial(_timed, measure, train, observed, held_out)
        found = _once(folder, f"{name}-{peer}", made)
        rows.append([peer, "", found["single"], found["average"], "", found["seconds"], ""])
    header = [
        "sampler",
        "paper",
        "one sample",
        "average",
        "paper s",
        "s per iteration",
        "divergences",
    ]
    notes = [
        f"{train.num_documents:,} documents to learn from, {test.num_documents:,} to predict, "
        f"{train.num_words:,} words, K = 100; perplexity of 20 % of each test document's tokens "
        "given the others, folded in by the posterior mean of their loads.",
        f"{length.num_warmup:,} iterations of warm-up and {length.num_draws:,} after, of ten "
        "minibatches of 100 documents each"
        + (f", in each of {length.num_chains} chains" if length.num_chains > 1 else "")
        + f"; average over all samples, {length.thin} apart; "
        f"{length.num_seeds} seeds from {seed} on, ± standard error.",
        "The paper's numbers are of its own preprocessing: not comparable in absolute terms.",
    ]
    if name == "reuters":
        notes.append("Reuters-21578 stands in for RCV1, which the paper used.")
    if folder is not None:
        _picture(label, runs, folder)
    return Report(f"table4-{label}", f"Table 4: perplexity on {name}", header, rows, notes)


def _once(folder: Path | None, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, from the folder if it is there."""
    if folder is None:
        return make()
    path = folder / "runs" / f"{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(make()), encoding="utf-8")
        part.replace(path)
    return json.loads(path.read_text(encoding="utf-8"))


def _run(
    name: str, train: Corpus, observed: Corpus, held_out: Corpus, length: Length, seed: int
) -> dict[str, Any]:
    """Chains one after the other, by one measure: the average is over the samples of all."""
    model = make_model(train.num_words, 100, frequencies=train.frequencies())
    measure = Perplexity(observed, held_out)
    chains = [
        fit(
            model,
            train,
            name,
            num_warmup=length.num_warmup,
            num_draws=length.num_draws,
            thin=length.thin,
            seed=seed * length.num_chains + i,
            measure=measure,
        )
        for i in range(length.num_chains)
    ]
    found = join(chains, length.num_warmup + length.num_draws)
    trace = {name: values.tolist() for name, values in found.trace.items()}
    return trace | {"pace": found.seconds_per_iteration, "divergences": found.num_divergences}


def _row(name: str, column: int, runs: list[dict[str, Any]]) -> list[str]:
    printed = PAPER.get(name)
    single, average = (np.array([run[key][-1] for run in runs]) for key in ("single", "average"))
    return [
        name,
        "" if printed is None else f"{printed[column]}",
        _with_error(single),
        _with_error(average),
        "" if printed is None or column else f"{printed[2]}",
        f"{np.median([run['pace'] for run in runs]):.3g}",
        f"{sum(run['divergences'] for run in runs)}",
    ]


def _with_error(values: np.ndarray) -> str:
    """Perplexities differ by tenths between samplers."""
    error = f" ± {values.std(ddof=1) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{values.mean():.1f}{error}"


def _timed(measure: Callable[..., tuple[str, str]], *corpora: Corpus) -> dict[str, Any]:
    begun = time.perf_counter()
    single, average = measure(*corpora)
    seconds = f"{time.perf_counter() - begun:.0f} s in all"
    return {"single": single, "average": average, "seconds": seconds}


def _picture(name: str, runs: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    figure = new_figure(figsize=(12, 5))
    for axis, what in zip(figure.subplots(1, 2), ("iteration", "seconds"), strict=True):
        for each, (first, *_) in runs.items():
            axis.plot(first[what], first["average"], "o-", ms=3, label=NAMES[each])
        axis.set(xlabel=what, ylabel="perplexity of the average so far")
    figure.axes[1].legend(fontsize=7)
    saved(figure, folder / f"figure1-{name}.png")


def _peers(length: Length) -> dict[str, Callable[[Corpus, Corpus, Corpus], tuple[str, str]]]:
    """By a name that tells them apart: one that has no chains is measured once for a corpus."""
    chains = f"{length.num_chains} chains of " if length.num_chains > 1 else ""
    return {
        f"tomotopy LDA, {chains}500 sweeps": partial(_collapsed_gibbs, length.num_chains),
        "scikit-learn online LDA, 4 passes": _online_lda,
        "scikit-learn NMF-KL, 5 % unigram": _nmf,
        "unigram": _unigram,
    }


def _unigram(train: Corpus, observed: Corpus, held_out: Corpus) -> tuple[str, str]:
    del observed
    return f"{unigram_perplexity(train, held_out):.0f}", ""


def _predicted(shares: Any, topics: Any, held_out: Corpus) -> str:
    """Perplexity of documents' shares (N, K) and topics (K, V), both summing to 1."""
    documents = np.repeat(np.arange(held_out.num_documents), held_out.lengths())
    rates = np.einsum("ik,ki->i", shares[documents], topics[:, held_out.words])
    total = np.sum(held_out.counts * np.log(rates))
    return f"{np.exp(-total / held_out.num_tokens):.0f}"


def _online_lda(train: Corpus, observed: Corpus, held_out: Corpus) -> tuple[str, str]:
    from sklearn.decomposition import LatentDirichletAllocation

    lda = LatentDirichletAllocation(
        100,
        doc_topic_prior=0.05,
        topic_word_prior=0.05,
        learning_method="online",
        batch_size=100,
        max_iter=4,
        random_state=0,
    ).fit(train.to_csr())
    topics = lda.components_ / lda.components_.sum(axis=1, keepdims=True)
    return _predicted(lda.transform(observed.to_csr()), topics, held_out), ""


def _nmf(train: Corpus, observed: Corpus, held_out: Corpus) -> tuple[str, str]:
    from sklearn.decomposition import NMF

    options: Any = {"n_components": 100, "beta_loss": "kullback-leibler", "solver": "mu"}
    nmf = NMF(init="random", random_state=0, **options)
    nmf.fit(train.to_csr().astype(np.float32))
    scale = nmf.components_.sum(axis=1, keepdims=True)
    shares = nmf.transform(observed.to_csr().astype(np.float32)) * scale.T + 1e-6
    unigram = train.frequencies()
    topics = 0.95 * nmf.components_ / scale + 0.05 * unigram / unigram.sum()
    return _predicted(shares / shares.sum(axis=1, keepdims=True), topics, held_out), ""


def _collapsed_gibbs(
    num_chains: int, train: Corpus, observed: Corpus, held_out: Corpus
) -> tuple[str, str]:
    """LDA with optimised weights: 500 sweeps of each chain, then samples 20 apart, 15 in all,
    measured as ours are."""
    try:
        tomotopy: Any = importlib.import_module("tomotopy")
    except ImportError:
        return "not installed", ""
    measure, single, average = Perplexity(observed, held_out), np.nan, np.nan
    for chain in range(num_chains):
        lda = tomotopy.LDAModel(k=100, alpha=0.1, eta=0.01, seed=1 + chain)
        for n in range(train.num_documents):
            words, counts = train.document(n)
            if len(words):
                lda.add_doc([str(word) for word in np.repeat(words, counts)])
        lda.train(500, workers=1)
        ids = np.array([int(word) for word in lda.used_vocabs])
        for _ in range(15 // num_chains):
            topics = np.full((train.num_words, lda.k), 1e-12)  # words that no document has
            topics[ids] = np.stack([lda.get_topic_word_dist(k) for k in range(lda.k)], axis=1)
            single, average = measure.add(topics / topics.sum(axis=0), np.asarray(lda.alpha))
            lda.train(20, workers=1)
    return f"{single:.0f}", f"{average:.0f}"
