"""Topics of documents: a corpus, its topics with their words, the words of new documents."""

import numpy as np

from momentem.topics import TopicModel, corpus, split_documents, top_words

WORDS = {
    "weather": ["rain", "wind", "cloud", "storm", "snow", "sun"],
    "kitchen": ["salt", "flour", "oven", "butter", "sugar", "knife"],
    "music": ["song", "piano", "choir", "drum", "violin", "opera"],
    "garden": ["seed", "soil", "rose", "tree", "leaf", "root"],
}
words = [word for topic in WORDS.values() for word in topic]
rng = np.random.default_rng(0)
shares = rng.dirichlet(0.2 * np.ones(4), 400)  # of the topics in a document
in_topic = np.kron(np.eye(4), rng.dirichlet(2.0 * np.ones(6), 1)) + 0.002
counts = rng.poisson(60 * shares @ in_topic)
train, test = split_documents(corpus(counts, words), share=0.75)
model = TopicModel(4, num_warmup=300, num_draws=300, thin=20).fit(train, out="topics")
best = top_words(model.components_.T, 6)
for topic, weight in enumerate(model.run_.weights.mean(axis=0)):
    print(f"{weight:.2f}", *(words[word] for word in best[topic]))
found = TopicModel.load("topics")
print("perplexity of held-out words:", round(found.perplexity(test), 1), "of", len(words), "words")
print("topics of a new document:", found.transform(test)[0].round(2))
