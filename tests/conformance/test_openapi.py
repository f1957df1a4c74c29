"""The service does what its OpenAPI description says: generated requests, right and wrong, against a real broker."""

from __future__ import annotations

import copy
import json
from collections.abc import MutableMapping
from importlib import resources
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.schemas import BaseSchema

import penstock
from penstock.dialects.native.publish import describe as describe_message_fields
from penstock.dialects.native.queue_document import describe as describe_settings
from penstock.limits import WAIT_SECONDS_MAX
from tests.support.broker import Broker, StartBroker
from tests.support.effort import LONG
from tests.support.event_history import events, make_history

EXAMPLES_MAX = 400 if LONG else 5
BUSY = "openapi-busy"  # A queue that is there, and always has a message, so that no receive waits.

# What a schema cannot say, by operation.
EXCLUDED_CHECKS = {
    # A dead-letter queue must exist; and 5.0 is an integer to JSON Schema, but not to this service.
    "createQueue": ["positive_data_acceptance"],
    "updateQueue": ["positive_data_acceptance"],
    # One message is answered without a body, several with their ids. Any body of any type is a message, except a
    # batch whose parts have bytes in their headers that no header has.
    "publishMessages": [
        "content_type_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "positive_data_acceptance",
    ],
    # A result is for a message that must be there, a queue of workers knows no start, and bytes are counted.
    "pullMessages": ["positive_data_acceptance"],
    "postMessages": ["positive_data_acceptance"],
    "getResult": ["positive_data_acceptance"],
    # As above; and a queue of that name may be there, with other settings.
    "createNativeQueue": ["positive_data_acceptance"],
    "changeNativeQueue": ["positive_data_acceptance"],
    # The log may end before the offset, and a day may have no such second. A wrong header is no wrong parameter.
    "readEvents": ["positive_data_acceptance"],
    "readBatches": ["positive_data_acceptance"],
    # The log may end before the position, and a snapshot of that offset must be there.
    "readBackupLog": ["positive_data_acceptance"],
    "readBackupSnapshot": ["positive_data_acceptance"],
    # There is none before the first object is published.
    "readBackupHistory": ["positive_data_acceptance"],
    # A queue or a message must be there, a cursor must be one that was given, and bytes are counted.
    "searchMessages": ["positive_data_acceptance"],
    "listScheduled": ["positive_data_acceptance"],
    "getMessage": ["positive_data_acceptance"],
    "reschedule": ["positive_data_acceptance"],
    "redrive": ["positive_data_acceptance"],
    # A queue must be there, a cron expression and a time zone must be some, and a start must be a time.
    "putSchedule": ["positive_data_acceptance"],
    "changeSchedule": ["positive_data_acceptance"],
    # A token must be there, its scopes and times must be some, and the first must be an administrator.
    "createToken": ["positive_data_acceptance"],
    "changeToken": ["positive_data_acceptance"],
    "rotateToken": ["positive_data_acceptance"],
    # Nothing is known of a key that was made up; and bytes are counted.
    "getObject": ["positive_data_acceptance"],
    # What a commit names must be staged; and bytes are not Arrow by chance.
    "commitBatch": ["positive_data_acceptance"],
    "stageRows": ["positive_data_acceptance"],
    # A range ends where it begins, or later, and the queue must be there.
    "claimMessages": ["positive_data_acceptance"],
    "readClaimed": ["positive_data_acceptance"],
    "finishClaimed": ["positive_data_acceptance", "negative_data_rejection"],
    # A body needs a message in it, a topic the name of a queue, and bytes are counted. Any body is a message.
    # With all parameters at once the target is too long, whatever the method.
    "publishToTopics": ["positive_data_acceptance", "negative_data_rejection", "unsupported_method"],
    # The same, and the queue must be there.
    "publishToQueue": ["positive_data_acceptance", "negative_data_rejection"],
    # A dead-letter queue must exist, and so must an endpoint that may be pushed to.
    "putChannel": ["positive_data_acceptance"],
    # Bytes of a name are counted, and control characters are none of a name.
    "takeQueueMessages": ["positive_data_acceptance"],
    "takeChannelMessages": ["positive_data_acceptance"],
    "readQueueMinutes": ["positive_data_acceptance"],
    "reportWorker": ["positive_data_acceptance"],
    # A message must be there, and somebody must have it. Of a list, each is answered for itself, also a wrong one.
    "confirmMessages": ["positive_data_acceptance", "negative_data_rejection"],
    "extendLease": ["positive_data_acceptance", "negative_data_rejection"],
}

load_all_checks()

DIALECTS = ("backup", "native", "nq", "objects", "schedules", "search", "staging", "stats", "tokens", "topics")


def packaged(dialect: str) -> dict[str, Any]:
    data = resources.files("penstock.dialects").joinpath(f"openapi/{dialect}.json").read_bytes()
    loaded: dict[str, Any] = json.loads(data)
    return loaded


def description() -> dict[str, Any]:
    """All dialects in one."""
    whole = packaged("mqs")
    for dialect in DIALECTS:
        more = packaged(dialect)
        whole["tags"] += more["tags"]
        assert not whole["paths"].keys() & more["paths"].keys()
        whole["paths"] |= more["paths"]
        for kind, parts in more["components"].items():
            assert not whole["components"][kind].keys() & parts.keys()
            whole["components"][kind] |= parts
    describe_settings(whole["components"]["schemas"])
    describe_message_fields(whole)
    return whole


def description_without_end() -> dict[str, Any]:
    """The same, but nobody asks for an answer that does not end, or makes an administrator: then all would need a
    token."""
    whole = description()
    schemas = whole["components"]["schemas"]
    schemas["TokenSettings"]["properties"]["scopes"]["items"] = {"enum": ["read:x"]}
    if not LONG:  # Making up 10,001 different parts takes half a minute; tests/wire/test_staging.py sends them.
        del schemas["BatchCommit"]["properties"]["parts"]["maxItems"]
    operation = whole["paths"]["/v1/events"]["get"]
    operation["parameters"] = [each for each in operation["parameters"] if each["name"] != "follow"]
    del whole["paths"]["/v1/stats/stream"]
    return whole


def description_of_one_queue() -> dict[str, Any]:
    """The same service to a client that knows the name of one queue, so that its requests find it."""
    narrowed = description_without_end()
    known = {"enum": [BUSY]}
    paths, schemas = narrowed["paths"], narrowed["components"]["schemas"]
    paths["/queues/{queue_name}"]["parameters"][0]["schema"] = known
    paths["/v1/queues/{queue_name}"]["parameters"][0]["schema"] = known
    paths["/v1/queues/{queue_name}/messages"]["parameters"][0]["schema"] = known
    del paths["/v1/queues/{queue_name}/messages"]["delete"]  # The queue always has a message.
    paths["/v1/results/{queue_name}/{id}"]["get"]["parameters"][0]["schema"] = known
    paths["/v1/search"]["get"]["parameters"][0]["schema"] = known
    paths["/v1/schedule"]["get"]["parameters"][0]["schema"] = known
    schemas["RedriveOrder"]["properties"]["from"] = known
    schemas["ScheduleSettings"]["properties"]["queue"] = known
    for path in ("/v1/schedules/{name}", "/v1/schedules/{name}/run"):
        paths[path]["parameters"][0]["schema"] = known
    for method in ("get", "post"):
        paths["/messages/{target}"][method]["parameters"][0]["schema"] = known
    schemas["KnownPolicy"] = copy.deepcopy(schemas["RedrivePolicy"])
    schemas["KnownPolicy"]["properties"]["dead_letter_queue"] = known
    policies = schemas["QueueSettings"]["properties"]["redrive_policy"]["anyOf"]
    policies[0] = {"$ref": "#/components/schemas/KnownPolicy"}
    return narrowed


any_queue: BaseSchema = schemathesis.openapi.from_dict(description_without_end())
one_queue: BaseSchema = schemathesis.openapi.from_dict(description_of_one_queue())
# What is too large, or too long, is rejected too.
rejection = any_queue.config.checks.negative_data_rejection
rejection.expected_statuses = [*rejection.expected_statuses, "413", "414"]
# Another name than the known one is no wrong name: so only right requests, as far as a schema can tell.
one_queue.config.generation.update(modes=[GenerationMode.POSITIVE], allow_extra_parameters=False)
# The short run asks the same each time; the long one looks for what nobody has thought of.
checked = settings(
    max_examples=EXAMPLES_MAX, derandomize=not LONG, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def busy_queue(broker: Broker) -> None:
    broker.request("DELETE", f"/queues/{BUSY}")
    broker.create_queue(BUSY, visibility_timeout=0)
    assert broker.request("POST", f"/messages/{BUSY}", body=b"always there").status == 201
    schedule = {"queue": BUSY, "cron": "@yearly", "message": "again"}
    assert broker.request("PUT", f"/v1/schedules/{BUSY}", body=json.dumps(schedule).encode()).status in (200, 201)


@any_queue.parametrize()
@checked
def test_every_answer_is_as_described(case: Case[Any], broker: Broker) -> None:
    call(case, broker)


@one_queue.parametrize()
@checked
def test_every_answer_is_as_described_when_the_queue_is_there(
    case: Case[Any], broker: Broker, busy_queue: None
) -> None:
    call(case, broker)


def call(case: Case[Any], broker: Broker) -> None:
    operation = case.operation.definition.raw["operationId"]
    wait_for_nothing(case)
    excluded: list[Any] = [CHECKS.get_one(name) for name in EXCLUDED_CHECKS.get(operation, [])]
    case.call_and_validate(base_url="http://{}:{}".format(*broker.http), excluded_checks=excluded, timeout=60)


def wait_for_nothing(case: Case[Any]) -> None:
    """A request that may wait for an hour does, in all likelihood; and on a busy machine an answer after 20 seconds
    comes too late."""
    if case.path.endswith("}/messages") and case.query.get("wait"):
        case.query["wait"] = 0
    if isinstance(case.body, MutableMapping) and is_allowed_wait(case.body.get("wait")):
        case.body["wait"] = 0
    place = {"/pull": case.body, "/v1/results/{queue_name}/{id}": case.query}.get(case.path)
    if isinstance(place, dict) and is_a_wait(place.get("timeout", 60)):
        place["timeout"] = 0


def is_allowed_wait(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= WAIT_SECONDS_MAX


def is_a_wait(timeout: object) -> bool:
    try:
        return not isinstance(timeout, bool) and 0 < float(timeout) <= 3600  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def test_the_served_description_is_the_packaged_one_in_this_version(broker: Broker) -> None:
    served = broker.request("GET", "/openapi.json")
    assert served.header("Content-Type") == "application/json"
    expected = description()
    expected["info"]["version"] = penstock.__version__
    assert served.json() == expected


def test_every_document_of_a_long_history_is_as_described(start_broker: StartBroker) -> None:
    """What generated requests hardly ever find."""
    broker = start_broker()
    make_history(broker)
    topics = ["fruit.sweet", "food.healthy"]
    broker.request("PUT", "/v1/channels/all-fruit", body=b'{"topics": ["fruit.*"]}')
    for _ in range(2):
        sent = {"topics": topics, "object": "apple", "key": "1", "message": "x", "timestamp": "2026-01-01T00:00:00Z"}
        assert broker.request("POST", "/v1/publish", body=json.dumps(sent).encode()).status == 201
    components = description()["components"]
    page, document = (
        jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})
        for name in ("FoundMessages", "MessageDocument")
    )
    page.validate(broker.request("GET", "/v1/search?limit=1000").json())
    for message_id in {event["id"] for event in events(broker) if "id" in event}:
        document.validate(broker.request("GET", f"/v1/messages/{message_id}").json())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"topics": ["a"]},
        {"message": "x", "message_base64": "eA=="},
        {"message_base64": "not base64"},
        {"message": "x", "topics": ["a"] * 101},
        {"message": "x", "topics": [".a"]},
        {"message": "x", "topics": ["a" * 251]},
        {"message": "x", "key": "k" * 1025},
        {"message": "x", "mimeType": "é"},
        {"message": "x", "sender": "a\nb"},
        {"message": "x", "priority": -1},
        {"message": "x", "expires": 0},
    ],
)
def test_a_publish_that_is_refused_is_not_as_described(broker: Broker, document: Any) -> None:
    described = jsonschema_rs.validator_for(
        {"$ref": "#/components/schemas/TopicMessage", "components": description()["components"]}
    )
    right = {"message": None, "topics": ["described/1.a/b", "described"], "object": "o/1", "key": "k"}
    assert described.is_valid(right)
    for each, status in ((right, 201), (document, 400)):
        assert broker.request("POST", "/v1/publish", body=json.dumps(each).encode()).status == status
    assert not described.is_valid(document)
