"""The fields that are kept with a message: what is said of each in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.message_fields import MESSAGE_FIELDS, MessageField
from penstock.server.openapi import openapi

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("field", MESSAGE_FIELDS.values(), ids=lambda field: field.name)
def test_a_field_is_in_the_documentation(field: MessageField) -> None:
    assert f"\n| `{field.name}` |" in (ROOT / "docs" / "native" / "publishing.md").read_text()


@pytest.mark.parametrize("field", MESSAGE_FIELDS.values(), ids=lambda field: field.name)
def test_a_field_is_described_wherever_a_message_is_given_or_shown(field: MessageField) -> None:
    schemas = openapi()["components"]["schemas"]
    messages = {name: each["properties"] for name, each in schemas.items() if "headers" in each.get("properties", ())}
    shown = {name for name, properties in messages.items() if field.name in properties}
    assert shown == {name for name in messages if not name.startswith("Schedule")}
