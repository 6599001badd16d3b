"""What an iteration of the topic samplers costs, and what a document costs scikit-learn.

    MOMENTEM_DATA=... python benchmarks/topics_speed.py [--rounds 9]

20-Newsgroups, NVDM vocabulary, K = 100. An iteration is ten minibatches of 100 documents. `bare`
is their local steps and gradients, two of each minibatch for the Nose-Poincare samplers, as those
take. Learning samplers are timed while they learn. scikit-learn's online LDA gets as many documents
of the same corpus, by `partial_fit` in batches of 100.

Targets that must hold: em / plain <= 1.05, sampler / bare <= 2, scikit-learn / sampler >= 1.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from momentem.topics.recipes import RECIPES, recipe
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import LatentDirichletAllocation

from momentem.pytrees import Static
from momentem.reproduce import datasets
from momentem.reproduce.timing import ratio, time_interleaved
from momentem.topics.local import gibbs
from momentem.topics.minibatches import draw_minibatches, layout
from momentem.topics.model import minibatch_target, model
from momentem.topics.starts import start
from momentem.xla import keys

BATCH, NUM_STEPS, NUM_ITERATIONS = 100, 10, 4


def contenders(train):
    host, key = np.random.default_rng(0), keys.key(0)
    shape = model(train.num_words, 100, frequencies=train.frequencies())
    position = start(shape, train, host)
    lines = layout(train, BATCH // 2)
    batches = draw_minibatches(train, lines, host, (NUM_ITERATIONS, NUM_STEPS), 2)
    weights = jnp.asarray(lines.weights(2), position.dtype)
    inputs = jax.random.split(key, NUM_ITERATIONS), batches

    def target_of(batches):
        share = BATCH / train.num_documents
        return minibatch_target(shape, gibbs(), batches, weights, position, share)

    def bare(num_gradients):
        def iteration(position, inputs):
            key, batches = inputs
            target = target_of(batches)

            def step(position, batch):
                for _ in range(num_gradients):
                    noisy = target.noisy_gradient(batch, position)
                    position = position + 1e-12 * noisy.gradient
                return position, None

            return jax.lax.scan(step, position, target.batches(key, Static(NUM_STEPS)))

        go = jax.jit(lambda inputs: jax.lax.scan(iteration, position, inputs)[0])
        return lambda: go(inputs)

    def ours(name):
        made = recipe(name, shape, train, NUM_STEPS)

        def iteration(state, inputs):
            key, batches = inputs
            return made.learning(target_of(batches)).step(key, state)[0], None

        first = jax.tree.map(lambda leaf: leaf[0], batches)
        state = made.learning(target_of(first)).init(key, position[None])
        go = jax.jit(lambda state, inputs: jax.lax.scan(iteration, state, inputs)[0])
        return lambda: go(state, inputs)

    counts, rng = train.to_csr(), np.random.default_rng(1)
    lda = LatentDirichletAllocation(100, doc_topic_prior=0.05, topic_word_prior=0.05)

    def theirs():
        for _ in range(NUM_ITERATIONS * NUM_STEPS):
            lda.partial_fit(counts[rng.integers(train.num_documents, size=BATCH)])

    return {"bare": bare(1), "bare, two gradients": bare(2), "scikit-learn online LDA": theirs} | {
        name: ours(name) for name in RECIPES
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    train, _ = datasets.twenty_news("nvdm")
    seconds = time_interleaved(contenders(train), rounds)
    table = Table(title=f"20-Newsgroups, per iteration; medians of {rounds} interleaved rounds")
    for column in ("sampler", "s", "/ bare", "em / plain", "scikit-learn / it"):
        table.add_column(column, justify="right")
    for name in seconds:
        pace = f"{np.median(seconds[name]) / NUM_ITERATIONS:.3f}"
        if name not in RECIPES:
            table.add_row(name, pace)
            continue
        gradients = "bare, two gradients" if "nphmc" in name else "bare"
        plain = name.removesuffix("-em").removesuffix("-tuned")
        table.add_row(
            name,
            pace,
            f"{ratio(seconds, name, gradients):.2f}",
            f"{ratio(seconds, name, plain):.3f}" if plain != name else "",
            f"{ratio(seconds, 'scikit-learn online LDA', name):.2f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
