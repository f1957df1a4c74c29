"""The native API: plain HTTP below `/v1`. Which file serves which path (`docs/native.md` has it in prose):

| path | methods | file |
|---|---|---|
| /v1/queues | GET | queues |
| /v1/queues/<name> | GET PUT PATCH DELETE | queues |
| /v1/queues/<name>/messages | GET | consume |
| /v1/queues/<name>/messages | POST | publish |
| /v1/queues/<name>/messages | DELETE | jobs |
| /v1/purges | GET | jobs |
| /v1/purges/<job> | GET DELETE | jobs |
| /v1/channels | GET | channels |
| /v1/channels/<name> | GET PUT DELETE | channels |
| /v1/channels/<name>/messages | GET | consume |
| /v1/publish | POST | publish |
| /v1/confirm | POST | consume |
| /v1/extend | POST | consume |
| /v1/wait | POST | wait |
| /v1/search | GET | search |
| /v1/messages/<id> | GET DELETE | search |
| /v1/schedule | GET | search |
| /v1/schedule/<id> | PATCH DELETE | search |
| /v1/schedules | GET | schedules |
| /v1/schedules/<name> | GET PUT PATCH DELETE | schedules |
| /v1/schedules/<name>/run | POST | schedules |
| /v1/tokens | GET | tokens |
| /v1/tokens/<name> | GET PUT PATCH DELETE | tokens |
| /v1/tokens/<name>/rotate | POST | tokens |
| /v1/redrive | GET POST | search |
| /v1/redrive/<job> | GET DELETE | search |
| /v1/events | GET | event_log |
| /v1/log | GET | event_log |
| /v1/log/batches | GET | event_log |
| /v1/backup | GET | backup |
| /v1/backup/<part> | GET | backup |
| /v1/objects/<object>/<key> | GET | objects |
| /v1/stats | GET | stats |
| /v1/stats/stream | GET | stats |
| /v1/lake/queue_minutes | GET | lake |
| /v1/workers | GET | workers |
| /v1/workers/<name> | PUT DELETE | workers |
| /v1/connections | GET | about |
| /v1/consumers | GET | consumers |
| /v1/settings | GET | about |
| /v1/identity | GET | about |
| /v1/cluster | GET | about |
| /v1/stage/<query> | GET | spark.staging |
| /v1/stage/<query>/<batch> | DELETE | spark.staging |
| /v1/stage/<query>/<batch>/<part> | POST | spark.staging |
| /v1/claims/<queue> | POST | spark.claims |
| /v1/claims/<queue>/<verb> | POST | spark.claims |

`queue_document` and `message_document` make the JSON of queues and messages, `event_text` that of events, `push` the
requests that the broker sends to the endpoints of channels, `jobs` is shared by redrives and purges.
"""
