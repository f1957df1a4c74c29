"""The contents of a queue by digest, so that a queue with deduplication accepts each only once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.engine.rows import Columns

DIGEST_BYTES = 32


class Digests(dict[bytes, int]):
    """Maps digests to sequences, for the messages in the queue. If a change of settings has allowed several messages
    with the same content, one of them is here."""

    __slots__ = ("by_sequence",)

    def __init__(self) -> None:
        self.by_sequence: dict[int, bytes] = {}

    def remember(self, digest: bytes, sequence: int) -> None:
        self[digest] = sequence
        self.by_sequence[sequence] = digest

    def forget(self, sequence: int) -> None:
        """Forget the content of a message that has left the queue or is damaged."""
        digest = self.by_sequence.pop(sequence, None)
        if digest is not None and self.get(digest) == sequence:
            del self[digest]

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        if self.by_sequence:
            sequences = np.fromiter(self.by_sequence, dtype=np.int64, count=len(self.by_sequence))
            digests = np.frombuffer(b"".join(self.by_sequence.values()), dtype=np.uint8)
            yield "digests", b"", (sequences, digests)

    def restore(self, columns: Columns) -> None:
        digests = columns[1].tobytes()
        for index, sequence in enumerate(columns[0].view(np.int64).tolist()):
            self.remember(digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES], sequence)
