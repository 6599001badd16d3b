"""What an iteration of the topic samplers costs, and what a document costs scikit-learn.

    MOMENTEM_DATA=... python benchmarks/topics_speed.py [--rounds 9]

20-Newsgroups, NVDM vocabulary, K = 100. An iteration is ten minibatches of 100 documents. `bare`
is their local steps and gradients, two of each minibatch for the Nose-Poincare samplers, as those
take. Learning samplers are timed while they learn. scikit-learn's online LDA gets as many documents
of the same corpus, by `partial_fit` in batches of 100.

`run` is the loop of a whole run, from chunk to chunk: reading windows, keeping every 20th draw in
memory, looking at the density. It is measured against the same sampler in a bare loop.

Targets that must hold: em / plain <= 1.05, sampler / bare <= 2, scikit-learn / sampler >= 1,
run / sampler <= 1.02.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import LatentDirichletAllocation

from momentem.pytrees import Static
from momentem.reproduce import datasets
from momentem.reproduce.timing import ratio, time_interleaved
from momentem.run.in_memory import Memory
from momentem.run.loop import complete
from momentem.run.plan import Here
from momentem.sampling import make_plan
from momentem.targets.parameters import parameter_forms
from momentem.targets.streams import set_clock
from momentem.topics.documents import DocumentStream
from momentem.topics.local import gibbs
from momentem.topics.minibatches import layout
from momentem.topics.model import make_model, minibatch_target
from momentem.topics.samplers import SAMPLERS, make_sampler
from momentem.topics.starts import start
from momentem.xla import keys

BATCH, NUM_STEPS, NUM_ITERATIONS = 100, 10, 4
NUM_RUN, RUNS = 20, ("sghmc", "sghmc-tuned")  # iterations of a run; samplers that are run


def contenders(train):
    key = keys.key(0)
    model = make_model(train.num_words, 100, frequencies=train.frequencies())
    position = start(model, train, np.random.default_rng(0))
    stream = DocumentStream(train, layout(train, BATCH // 2), NUM_STEPS, (0,), NUM_RUN)
    weights = jnp.asarray(stream.layout.weights(2), position.dtype)
    share = BATCH / train.num_documents
    target = minibatch_target(model, gibbs(), stream.open(), weights, position, share)

    def bare(num_gradients):
        @jax.jit
        def go(target, position):
            def step(position, batch):
                for _ in range(num_gradients):
                    noisy = target.noisy_gradient(batch, position)
                    position = position + 1e-12 * noisy.gradient
                return position, None

            def iteration(i, position):
                own_key, number = jax.random.fold_in(key, i), Static(NUM_STEPS)
                return jax.lax.scan(step, position, set_clock(target, i).batches(own_key, number))[
                    0
                ]

            return jax.lax.fori_loop(0, NUM_ITERATIONS, iteration, position)

        return lambda: go(target, position)

    def ours(name, num_iterations=NUM_ITERATIONS):
        sampler = make_sampler(name, model, train, target, NUM_STEPS)
        state = sampler.init(key, position[None])

        @jax.jit
        def go(sampler, state):
            def iteration(i, state):
                return set_clock(sampler, i).step(jax.random.fold_in(key, i), state)[0]

            return jax.lax.fori_loop(0, num_iterations, iteration, state)

        return lambda: go(sampler, state)

    def whole_run(name):
        """The run's loop over a phase of warm-up, which has the same program every time."""
        sampler = make_sampler(name, model, train, target, NUM_STEPS)
        sizes = {"num_warmup": NUM_RUN, "num_chains": 1, "seed": 0, "thin": 20}
        plan = make_plan(target, NUM_RUN, False, None, None, None, **sizes)
        state = sampler.init(key, position[None])

        def go():
            sink = Memory(plan, parameter_forms(target), Here(0, False, state, None), 0.0)
            sink.num_draws = 0
            complete(target, sampler, plan, sink, False, None)
            return sink.here.state

        return go

    counts, rng = train.to_csr(), np.random.default_rng(1)
    lda = LatentDirichletAllocation(100, doc_topic_prior=0.05, topic_word_prior=0.05)

    def theirs():
        for _ in range(NUM_ITERATIONS * NUM_STEPS):
            lda.partial_fit(counts[rng.integers(train.num_documents, size=BATCH)])

    return (
        {"bare": bare(1), "bare, two gradients": bare(2), "scikit-learn online LDA": theirs}
        | {name: ours(name) for name in SAMPLERS}
        | {f"{name}, {NUM_RUN} iterations": ours(name, NUM_RUN) for name in RUNS}
        | {f"{name}, run": whole_run(name) for name in RUNS}
    )


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
        is_long = name.endswith((", run", "iterations"))
        pace = f"{np.median(seconds[name]) / (NUM_RUN if is_long else NUM_ITERATIONS):.3f}"
        if name not in SAMPLERS:
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
    for name in RUNS:
        found = ratio(seconds, f"{name}, run", f"{name}, {NUM_RUN} iterations")
        print(f"{name}: run / sampler {found:.3f}")


if __name__ == "__main__":
    main()
