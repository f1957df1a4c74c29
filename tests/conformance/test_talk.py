"""`/asyncapi.json` is one description of all that is spoken over open connections, and glovebox is as it says."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema_rs
import pytest

from penstock.dialects.glovebox import codec as glovebox_codec
from tests.support.broker import Broker
from tests.support.ws_client import WsClient

PARTS = {
    file.name.removesuffix(".json"): json.loads(file.read_bytes())
    for file in resources.files("penstock.dialects").joinpath("asyncapi").iterdir()
}
GLOVEBOX: dict[str, Any] = PARTS["glovebox"]
REQUESTS = ("create", "post", "fetch", "finish", "pop")


def entries(part: dict[str, Any]) -> set[tuple[str, str]]:
    """Everything that has a name in a description."""
    sections = {name: part[name] for name in ("servers", "channels", "operations")} | part["components"]
    return {(section, name) for section, named in sections.items() for name in named}


def references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [each for inner in part for each in references(inner)]
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [each for inner in part.values() for each in references(inner)]
    return []


def resolve(whole: dict[str, Any], reference: str) -> Any:
    found: Any = whole
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
        if isinstance(found, dict) and "$ref" in found:
            found = resolve(whole, found["$ref"])
    return found


def fits(frame: Any, name: str) -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": GLOVEBOX["components"]}
    jsonschema_rs.validate(schema | {"$ref": f"#/components/messages/glovebox.{name}/payload"}, frame)


def test_no_two_dialects_use_one_name() -> None:
    seen: set[tuple[str, str]] = set()
    for part in PARTS.values():
        assert not seen & entries(part)
        seen |= entries(part)


def test_the_broker_serves_all_of_it_as_one(broker: Broker) -> None:
    answer = broker.request("GET", "/asyncapi.json")
    whole = answer.json()
    assert (answer.status, answer.header("Content-Type"), whole["asyncapi"]) == (200, "application/json", "3.0.0")
    assert entries(whole) == {entry for part in PARTS.values() for entry in entries(part)}
    for reference in references(whole):
        assert resolve(whole, reference)


def test_every_example_fits_its_schema() -> None:
    for name, message in GLOVEBOX["components"]["messages"].items():
        for example in message["examples"]:
            fits(example["payload"], name.removeprefix("glovebox."))


@pytest.mark.parametrize("name", REQUESTS)
def test_every_field_of_a_request_is_described(name: str) -> None:
    fields = getattr(glovebox_codec, name.capitalize()).__struct_fields__
    described = GLOVEBOX["components"]["messages"][f"glovebox.{name}"]["payload"]["properties"]
    assert set(described) == {"type", *fields}


def test_every_example_is_understood_and_answered_as_described(broker: Broker) -> None:
    messages = GLOVEBOX["components"]["messages"]
    with WsClient(broker.http) as client:
        fits(client.hear(), "hello")
        for name in REQUESTS:
            reply = client.ask(**messages[f"glovebox.{name}"]["examples"][0]["payload"])
            replies = [each["$ref"] for each in GLOVEBOX["operations"][f"glovebox.{name}"]["reply"]["messages"]]
            assert f"#/channels/glovebox/messages/{reply['type']}" in replies
            fits(reply, reply["type"])
