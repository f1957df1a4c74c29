"""`GET /v1/cluster` renders what it is given, for administrators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.dialects.native.about import Cluster
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.model.access import EVERYTHING, Access
from penstock.model.cluster import ClusterState, MemberState, ShardPlace

NODE = MemberState("n@host", 3, "h:1", "waits", 0, False, 0.4, this=False)
SHARD = ShardPlace(2, None, None, 9, here=False, reachable=False)


def ask(target: bytes = b"/v1/cluster", access: Access = EVERYTHING) -> Any:
    get = Cluster(lambda: ClusterState("nodes", [SHARD], [NODE])).routes[b"v1/cluster", 2][b"GET"]
    request = http.Request(b"GET", target, {})
    request.access = access
    return get(request, b"cluster")


def test_the_document_has_every_field() -> None:
    answer = ask()
    shard = {"shard": 2, "owner": None, "address": None, "epoch": 9, "here": False, "reachable": False}
    about = {"state": "waits", "shards": 0, "linked": False, "seen_seconds_ago": 0.4, "this": False}
    member = {"name": "n@host", "number": 3, "address": "h:1", **about}
    assert answer.status == 200
    assert json.loads(answer.body) == {"kind": "nodes", "shards": [shard], "members": [member]}


def test_a_parameter_is_refused() -> None:
    with pytest.raises(ProtocolError):
        ask(b"/v1/cluster?shard=1")
