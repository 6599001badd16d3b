"""Nonparametric topics of a corpus: Gamma-process Poisson factor analysis, sampled."""

from momentem.topics._corpus import Corpus, corpus, split_documents, split_words
from momentem.topics.estimator import TopicModel
from momentem.topics.evaluation import coherence, perplexity, top_words
from momentem.topics.limits import Limits
from momentem.topics.readers import read

__all__ = [
    "Corpus",
    "Limits",
    "TopicModel",
    "coherence",
    "corpus",
    "perplexity",
    "read",
    "split_documents",
    "split_words",
    "top_words",
]
