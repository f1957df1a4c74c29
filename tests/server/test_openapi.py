"""The descriptions of all dialects are one document, in which none hides another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import __version__
from penstock.config.quotas import QuotaLimits
from penstock.server.openapi import _parts, asyncapi, asyncapi_document, openapi, openapi_document


def all_parts(folder: str, *sections: str) -> list[str]:
    """The names in these sections of all parts: each once for each part that has it."""
    return [name for part in _parts(folder).values() for section in sections for name in part.get(section, ())]


@pytest.mark.parametrize("document", [openapi_document(), asyncapi_document()])
def test_a_document_says_which_version_it_describes(document: bytes) -> None:
    described: dict[str, Any] = msgspec.json.decode(document)
    assert described["info"]["version"] == __version__


def test_every_path_of_every_dialect_is_described_once() -> None:
    paths = all_parts("openapi", "paths")
    assert sorted(paths) == sorted(openapi()["paths"])
    assert len(paths) > len(_parts("openapi"))


def test_every_channel_and_operation_of_every_dialect_is_described_once() -> None:
    whole = asyncapi()
    names = all_parts("asyncapi", "servers", "channels", "operations")
    assert sorted(names) == sorted([*whole["servers"], *whole["channels"], *whole["operations"]])


def test_the_limits_of_a_token_are_described_by_the_names_of_quotas() -> None:
    described = openapi()["components"]["schemas"]["TokenLimits"]["propertyNames"]["enum"]
    assert described == [*QuotaLimits.__struct_fields__]
