"""A small search index: BM25 (Robertson and Zaragoza, 2009) over texts in memory."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return re.findall(r"\w+", text.lower())


class BM25Index:
    """Ranks documents by Σ idf(w) · tf·(k1+1) / (tf + k1·(1 − b + b·length/mean length))."""

    def __init__(self, documents: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        self.documents = list(documents)
        self._k1, self._b = k1, b
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths: list[int] = []
        for index, document in enumerate(self.documents):
            counts = Counter(words(document))
            self._lengths.append(sum(counts.values()))
            for word, count in counts.items():
                self._postings[word].append((index, count))
        self._mean = sum(self._lengths) / max(len(self._lengths), 1) or 1.0

    def search(self, query: str, n_results: int = 3) -> list[tuple[str, float]]:
        """The best documents with their scores; documents without any word of the query are left out."""
        scores: dict[int, float] = defaultdict(float)
        total = len(self.documents)
        for word in set(words(query)):
            found = self._postings.get(word, [])
            idf = math.log(1 + (total - len(found) + 0.5) / (len(found) + 0.5))
            for index, tf in found:
                norm = self._k1 * (1 - self._b + self._b * self._lengths[index] / self._mean)
                scores[index] += idf * tf * (self._k1 + 1) / (tf + norm)
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:n_results]
        return [(self.documents[index], score) for index, score in best]
