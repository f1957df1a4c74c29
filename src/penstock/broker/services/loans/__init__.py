"""Object History over several shards. Each object and key has one shard that answers for it: it knows the versions.
A message with the key is stored in the shard of its queue, which borrows the key first, and decides with what it was
lent.

    shard of the queue: Borrower                         shard of the key: Lender
      BorrowKeys ──────────────────────────────────────►  nobody else has them: lends the newest versions
      decides, logs, commits; answers its client
      ReturnKeys: these have new versions ─────────────►  lends them on to others when its courier has brought those
      log: `versioned` ◄────────── courier ────────────── log: `learned`

So nothing counts as a version before its message is durable, and the log of the shard that answers has all of them
in their order. What is lent is in memory only. A lender opens a session with each shard: whatever is lost on the way
ends it, and in the next one nothing counts that was lent before. It begins when all that was decided with the old
loans is durable, and the lender has learned of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.services.courier_target import CourierTarget
from penstock.broker.services.loans.borrower import Borrower
from penstock.broker.services.loans.lender import Lender
from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import ClientPort


def connect_loans(
    borrower: Borrower,
    lender: Lender,
    courier: CourierTarget,
    shard: int,
    shards: ShardMap,
    ports: Sequence[ClientPort],
) -> None:
    """This is one of several shards. `ports`: of all, in their order."""
    borrower.connect(shard, shards, ports)
    lender.connect(shard, ports, courier)
    courier.on_versions = lender.learned
    borrower.writer.hold_schedules(borrower.needs_keys)
