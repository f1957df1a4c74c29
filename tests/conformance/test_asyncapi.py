"""Etzel's AsyncAPI description says what the broker does: it can be resolved, and every frame of ours fits it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from penstock.dialects.etzel import codec as etzel
from tests.support.broker import Broker
from tests.support.line_client import LineClient
from tests.support.transcript import load

TRANSCRIPTS = sorted((Path(__file__).parent / "etzel").glob("*.toml"))


def description() -> dict[str, Any]:
    packaged = resources.files("penstock.dialects").joinpath("asyncapi/etzel.json").read_bytes()
    loaded: dict[str, Any] = json.loads(packaged)
    return loaded


DESCRIPTION = description()
MESSAGES: dict[str, Any] = {each["name"]: each for each in DESCRIPTION["components"]["messages"].values()}


def resolved(reference: str) -> Any:
    found: Any = DESCRIPTION
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
    return resolved(found["$ref"]) if isinstance(found, dict) and "$ref" in found else found


def references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [each for inner in part for each in references(inner)]
    if isinstance(part, dict):
        own = [part["$ref"]] if "$ref" in part else []
        return own + [each for inner in part.values() for each in references(inner)]
    return []


def fits(frame: dict[str, Any], name: str) -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": DESCRIPTION["components"]}
    jsonschema_rs.validate(schema | {"$ref": f"#/components/messages/etzel.{name}/payload"}, frame)


def test_every_reference_leads_somewhere() -> None:
    for reference in references(DESCRIPTION):
        assert resolved(reference)


def test_every_example_fits_its_schema() -> None:
    for name, message in MESSAGES.items():
        for example in message["examples"]:
            fits(example["payload"], name)


def test_every_command_is_described_and_no_other() -> None:
    described = {name for name in MESSAGES if name.isupper()}
    assert described == set(etzel.FIELDS)
    for name, fields in etzel.FIELDS.items():
        schema = MESSAGES[name]["payload"]
        assert set(schema["properties"]) == {"cmd", *(field.name for field in fields)}
        assert set(schema["required"]) == {"cmd", *(field.name for field in fields if field.required)}


def test_every_example_command_is_answered_as_described(broker: Broker) -> None:
    with LineClient(broker.lines) as client:
        for operation in DESCRIPTION["operations"].values():
            if operation["action"] == "send":
                continue
            (command,) = (resolved(each["$ref"]) for each in operation["messages"])
            replies = [resolved(each["$ref"])["name"] for each in operation["reply"]["messages"]]
            heard = client.ask(**command["examples"][0]["payload"])
            assert heard["cmd"] in replies
            fits(heard, heard["cmd"])


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[path.stem for path in TRANSCRIPTS])
def test_the_replies_of_the_transcripts_are_described(path: Path) -> None:
    for step in load(path).step:
        for reply in step.hear:
            described = MESSAGES[reply["cmd"]]["payload"]["properties"]
            assert set(reply) <= set(described)
            if "err" in reply:
                assert reply["err"] in DESCRIPTION["components"]["schemas"]["etzel.Error"]["enum"]
