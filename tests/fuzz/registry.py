"""Every fuzz target, by its name: one for each decoder that sees bytes of strangers."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import brokers, clients, documents, doors, identities, storage, tls, wire

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (wire, tls, identities, documents, storage, clients, brokers, doors)
    for target in module.TARGETS
}
