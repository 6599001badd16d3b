"""Topics of a corpus with RCV1's shape, streamed from disk: memory, time and perplexity.

    python benchmarks/topics_scale.py [--documents 804414] [--iterations 1000] [--steps 2]

A corpus of so many documents over 10,000 words, 75 tokens each on average, is made from 60 planted
topics, saved, and read back memory-mapped. Then, each in a process of its own: seconds per
iteration on the first 11,314 documents and on all of them, interleaved in rounds, and a whole run
with held-out perplexity along the way and its peak memory.

Targets that must hold: all / few <= 1.3, peak memory < 4 GB, perplexity falls.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from momentem.topics import Corpus, split_words
from momentem.topics._fit import fit
from momentem.topics.corpus_files import load, save
from momentem.topics.evaluation import Perplexity, unigram_perplexity
from momentem.topics.model import make_model, topics_of
from momentem.topics.starts import start

NUM_WORDS, NUM_PLANTED, NUM_TOPICS, MEAN_LENGTH = 10_000, 60, 100, 75


def generate(num_documents, seed=0, block=50_000):
    """Return documents of two planted topics each. The words of a topic follow Zipf's law, in an
    order of its own."""
    planted, rng = np.random.default_rng(0), np.random.default_rng(seed + 1)
    zipf = 1 / np.arange(1, NUM_WORDS + 1)
    cumulative = np.cumsum(zipf / zipf.sum())
    orders = [planted.permutation(NUM_WORDS) for _ in range(NUM_PLANTED)]
    starts, words, counts = [np.zeros(1, np.int64)], [], []
    for first in range(0, num_documents, block):
        num = min(block, num_documents - first)
        lengths = np.maximum(5, rng.lognormal(np.log(MEAN_LENGTH) - 0.25, 0.7, num).astype(int))
        document = np.repeat(np.arange(num), lengths)
        pair = rng.integers(NUM_PLANTED, size=(num, 2))
        topic = pair[document, (rng.random(len(document)) < 0.3).astype(int)]
        ranks = np.searchsorted(cumulative, rng.random(len(document)))
        token = np.stack(orders)[topic, np.minimum(ranks, NUM_WORDS - 1)]
        codes, repeats = np.unique(document * NUM_WORDS + token, return_counts=True)
        starts.append(np.cumsum(np.bincount(codes // NUM_WORDS, minlength=num)) + starts[-1][-1])
        words.append((codes % NUM_WORDS).astype(np.uint16))
        counts.append(repeats.astype(np.uint16))
    parts = [np.concatenate(each) for each in (starts, words, counts)]
    return Corpus(parts[0], parts[1], parts[2], None, NUM_WORDS)


def model_of(train):
    return make_model(train.num_words, NUM_TOPICS, frequencies=train.frequencies())


def paces(folder, steps, rounds=3):
    """Return seconds per iteration on few and on all documents, in turns."""
    whole = load(folder)
    found = {"few": [], "all": []}
    for _ in range(rounds):
        for name, train in (("few", whole.take(np.arange(11_314))), ("all", whole)):
            run = fit(model_of(train), train, num_steps=steps, num_warmup=0, num_draws=80, thin=80)
            found[name].append(run.seconds_per_iteration)
    ratio = float(np.median(np.array(found["all"]) / np.array(found["few"])))
    return {name: float(np.median(each)) for name, each in found.items()} | {"ratio": ratio}


def whole_run(folder, steps, iterations):
    """Make a run, with perplexity at each quarter, and return the peak of its memory."""
    train = load(folder)
    observed, held_out = split_words(generate(2_000, seed=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    model = model_of(train)
    first = topics_of(model, start(model, train, np.random.default_rng(0)))
    begun = time.perf_counter()
    run = fit(
        model,
        train,
        num_steps=steps,
        num_warmup=iterations // 4,
        num_start=iterations // 8,
        num_draws=iterations - iterations // 4,
        thin=iterations // 4,
        measure=Perplexity(observed, held_out),
    )
    return {
        "unigram": unigram_perplexity(train.take(np.arange(20_000)), held_out),
        "at the start": Perplexity(observed, held_out).add(*first)[0],
        "perplexity": run.trace["single"].tolist(),
        "divergences": run.num_divergences,
        "seconds": time.perf_counter() - begun,
        "seconds_per_iteration": run.seconds_per_iteration,
        "memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "memory_before_gb": before,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=804_414)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--part", choices=("paces", "whole_run"))
    parser.add_argument("--folder")
    given = parser.parse_args()
    if given.part:
        parts = {
            "paces": lambda: paces(given.folder, given.steps),
            "whole_run": lambda: whole_run(given.folder, given.steps, given.iterations),
        }
        print(json.dumps(parts[given.part]()))
        return
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        made = generate(given.documents)
        save(made, Path(folder) / "corpus")
        print(
            f"{made.num_documents:,} documents, {made.num_tokens:,} tokens, {len(made.words):,} "
            f"pairs, made in {time.perf_counter() - begun:.0f} s",
            flush=True,
        )
        for part in ("paces", "whole_run"):
            options = ["--part", part, "--folder", f"{folder}/corpus", "--steps", f"{given.steps}"]
            options += ["--iterations", f"{given.iterations}"]
            told = subprocess.run(
                [sys.executable, __file__, *options], capture_output=True, text=True, check=True
            )
            print(part, told.stdout.strip(), flush=True)


if __name__ == "__main__":
    main()
