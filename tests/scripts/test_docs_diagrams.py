from __future__ import annotations

from xml.etree import ElementTree

import pytest

from scripts.docs_diagrams import drawn

SEQUENCE = """before
```mermaid
sequenceDiagram
    participant C as client
    participant B as broker
    C->>B: publish <a> & wait
    Note over B: collects
    B->>B: one fsync
    B-->>C: 201
```
after"""


def test_a_sequence_becomes_a_picture_with_every_name_and_text() -> None:
    before, picture, after = drawn(SEQUENCE).split("\n")
    assert (before, after) == ("before", "after")
    texts = [element.text for element in ElementTree.fromstring(picture).iter("text")]
    assert texts == ["client", "broker", "publish <a> & wait", "collects", "one fsync", "201"]


def test_states_become_a_table() -> None:
    text = "```mermaid\nstateDiagram-v2\n    [*] --> Ready: L logged\n    Ready --> [*]: S, X\n```"
    assert drawn(text).splitlines()[2:] == ["| *new* | Ready | L logged |", "| Ready | *gone* | S, X |"]


def test_a_diagram_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw a pie"):
        drawn("```mermaid\npie\n```")
