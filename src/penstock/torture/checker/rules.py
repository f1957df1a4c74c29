"""The rules by their names, which stay, and how a violation is written."""

from __future__ import annotations

from typing import NamedTuple

RULES = {
    "nothing-lost": "an acknowledged message is delivered, waiting, dead-lettered or expired",
    "finished-stays-finished": "a message is not delivered after its finish was acknowledged",
    "one-lease": "a message has one lease at a time",
    "content-intact": "what is delivered is what was sent, where it was sent",
    "no-gaps": "the sequences of a queue have no gaps, and each is one message",
    "in-order": "a receiver gets messages in the order of their sequences",
    "once-per-receiver": "a receiver gets a message once, and again only if it owes a result in time",
    "one-per-dedup-key": "a queue with deduplication has a content once",
    "one-per-idempotency-key": "an idempotency key publishes once",
    "changed-only": "changed content is delivered, and unchanged content is not",
    "notices-follow": "notices follow the life of the message",
    "results-kept": "a result that was acknowledged can be read, and the first one counts",
    "known-answers": "the broker answers in time, with what the documentation names",
    "comes-back": "the broker serves again when a fault is over",
}


class Violation(NamedTuple):
    rule: str
    about: str  # Whose events show it.
    sentence: str
    at: float


def violation(rule: str, about: str, at: float, sentence: str) -> Violation:
    assert rule in RULES, rule
    return Violation(rule, about, sentence, at)
