"""Minibatches of documents as a stream: those of a few iterations are a window.

Window w holds the same minibatches whenever it is read, because it is drawn by a generator of its
own, whose seed is that of the stream and w. So the documents that a run sees follow from the
iteration that it is at, and a resumed run sees what it would have seen. The next window is read
while one is in use, from arrays that may be memory-mapped: neither memory nor time per iteration
depends on the number of documents.
"""

import numpy as np

from momentem.targets.streams import ReadAhead, Window
from momentem.topics._corpus import Corpus
from momentem.topics.minibatches import Layout, Minibatches, draw_minibatches

__all__ = ["DocumentStream"]

HOLD = 20  # iterations


class DocumentStream(ReadAhead):
    """Minibatches of two halves, by window, iteration and step.

    Args:
        corpus: whose documents.
        layout: of the corpus, with as many strata as half a minibatch has documents.
        num_steps: minibatches per iteration.
        seed: of the draws; streams with different seeds are independent.
        hold: iterations in a window.
    """

    def __init__(
        self,
        corpus: Corpus,
        layout: Layout,
        num_steps: int,
        seed: tuple[int, ...],
        hold: int = HOLD,
    ):
        super().__init__()
        self.corpus, self.layout, self.num_steps = corpus, layout, num_steps
        self.seed, self.hold = seed, hold

    def __eq__(self, other: object) -> bool:
        # a compiled program uses rows alone: one that was compiled for another stream serves
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def open(self) -> Window:
        """Return the first window."""
        return Window(self.rows(0), self, self.hold)

    def read(self, index: int) -> Minibatches:
        """Return the minibatches of window `index`, by iteration and step."""
        rng = np.random.default_rng((*self.seed, index))
        return draw_minibatches(self.corpus, self.layout, rng, (self.hold, self.num_steps), 2)
