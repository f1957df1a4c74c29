"""All limits of the system: the unit comes last in each name, and relations between limits are asserted."""

from __future__ import annotations

SECOND_NS = 1_000_000_000
NEVER_NS = (1 << 63) - 1  # A deadline that never comes.
INT32_MAX = (1 << 31) - 1
UINT32_MAX = (1 << 32) - 1

# Names and messages
NAME_BYTES_MAX = 250
TOKENS_MAX = 100_000
TOKENS_PER_SECTION = 1000  # Of a snapshot.
TOKEN_SCOPES_MAX = 100
ACCESS_KNOWN_MAX = 4096  # Decisions of one identity that are remembered.
BODY_BYTES_MAX = 1 << 20
KEY_BYTES_MAX = 1024
CONTENT_TYPE_BYTES_MAX = 255
HEADER_VALUE_BYTES_MAX = 255  # Each of the other request headers that are returned with a message.
HEADERS_BYTES_MAX = 16 << 10
USER_HEADERS_MAX = 64  # That a producer gives a message.
USER_HEADERS_BYTES_MAX = 8 << 10  # Their names and values.
USER_HEADER_NAME_BYTES_MAX = 128
MESSAGE_BYTES_MAX = BODY_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX
RESULT_BYTES_MAX = 1 << 20
REASON_BYTES_MAX = 10 << 10  # Why a consumer gave a message back: an error, with the end of its traceback.
REASON_CHARACTERS_KEPT = 128  # Of a dead letter, in memory.
BATCH_MESSAGES_MAX = 1000
PART_HEADERS_MAX = 32  # Header lines of one part of a multipart body.
UNBEGUN_MAX = 10  # Leases of a message in a row that end before their consumer has begun, and do not count.
FETCH_BYTES_MAX = 4 << 20  # Bodies in one answer; a single message always fits.
PAGE_PIECE_BYTES = 64 << 10  # Of a long answer, made in one turn of the event loop; approximate.
LONG_POLL_SECONDS_MAX = 20
PULL_SECONDS_MAX = 3600
PULL_QUEUES_MAX = 1000
POST_MESSAGES_MAX = 10_000
RESULTS_MAX = 10_000  # Per request.
REQUEST_KEYS_MAX = 1 << 16  # In all JSON objects of one NQ request.
RETRIES_MAX = 1000
FAIL_SECONDS_MAX = 365 * 86_400
DELAY_SECONDS_MAX = 365 * 86_400
TOPICS_MAX = 100  # Topics of one message, and patterns of one channel.
CHANNEL_RETRIES_MAX = 9
CONFIRMATIONS_MAX = 1000  # That a queue may ask for, for each message.
PUSH_IN_FLIGHT_DEFAULT = 8
PUSH_SECONDS_DEFAULT = 30

# Time
CLOCK_SLOWNESS = 10  # The broker's clock takes this many times as long as it is off to agree with the machine's.
CLOCK_OFF_SECONDS = 2  # If it is off by more when a shard arrives, that is logged.

# Tokens that an identity provider has signed
JWT_BYTES_MAX = 8 << 10
JWT_SCOPES_MAX = 100
JWT_LEEWAY_SECONDS = 30  # The clocks of the provider and of the broker may differ by this much.
JWTS_KNOWN_MAX = 4096  # Verified tokens that are not verified again.
JWT_KEYS_BYTES_MAX = 1 << 20  # Size of the file with the keys.
JWT_KEYS_MAX = 1000

# The audit
AUDIT_WINDOW_SECONDS = 60  # Equal refusals in this time are one record.
AUDIT_REFUSALS_MAX = 100  # That are kept apart in this time.

# Numbers: a message id has room for these
SHARD_MAX = (1 << 12) - 1
QUEUE_NUMBER_MAX = (1 << 24) - 1
SEQUENCE_MAX = (1 << 44) - 1
NAMES_MAX = 1 << 24  # The highest possible setting for repeated names (content types, consumers, …) in memory.
NAMES_DEFAULT = 1 << 20
NAMES_CHARACTERS_EACH = 256  # On average: a set of a hundred topics may have a hundred times as many.
NAMES_CHARACTERS_MIN = 1 << 20  # There is always room for this many characters in all names together.
NAME_NUMBER_MAX = INT32_MAX  # Arrow stores them as signed 32-bit numbers.
NAMES_SWEPT_MIN = 4096  # With fewer names there is no sweep.
NAMES_FORGOTTEN_AT_ONCE = 256
NAMES_RECALLED_MAX = 65_536  # Recently forgotten names that readers of the log find without a search,
NAMES_RECALLED_CHARACTERS_MAX = 8 << 20  # and how long they may be together.
NAMES_LOOKED_UP_MAX = 4096  # Forgotten names that an index has found.
NAMES_FOUND_MAX = 1 << 20  # Forgotten names that a search of the log has found.
ROWS_SWEPT_AT_ONCE = 16  # In chunks: half a millisecond, if every row has other names.
NAME_SWEEP_SECONDS = 1.0  # How often to check whether a sweep is worthwhile.
NAME_SWEEP_PAUSE_SECONDS = 0.005  # Between two slices.
QUEUES_MAX = 100_000
RECEIVERS_MAX = 10_000  # Per queue.

# The engine
ROWS_PER_CHUNK = 32
RUN_MESSAGES_MIN = 12  # Fewer messages are logged one by one, because a table would cost more.
RUN_MESSAGES_MAX = 256  # Publishes that are decided together.
RUNS_TOGETHER_MAX = 16  # Runs are long: so many are decided together, and others have their turn.
ROUTES_CACHED_MAX = 10_000  # Sets of topics whose channels are remembered.
PUBLISH_DELIVERIES_MAX = 100_000  # Queues times messages of one publish: 10 MB of log.
WAKES_MAX = 128  # Waiting clients that are answered in one turn of the event loop.
TICK_EVENTS_MAX = 2_000  # Deadlines handled at once, so that a million of them do not block clients.

# Idempotency keys
IDEMPOTENCY_KEY_BYTES_MAX = 128
IDEMPOTENCY_SECONDS_DEFAULT = 600
IDEMPOTENCY_KEYS_DEFAULT = 100_000
IDEMPOTENCY_BYTES_MAX = 64 << 20  # All keys and their answers.
IDEMPOTENCY_FORGOTTEN_AT_ONCE = 1000  # Keys that are too old. Keys for which there is no room are all forgotten.

# Recurring schedules
SCHEDULES_MAX = 100_000
SCHEDULES_BYTES_MAX = 64 << 20  # Of the messages of all of them: they are in memory.
SCHEDULE_BODY_BYTES_MAX = 64 << 10
SCHEDULES_PER_PART = 10  # Described in one part of a list.
SCHEDULES_PER_SECTION = 256  # Of a snapshot.
SCHEDULE_SECONDS_MIN = 1  # Between two ticks.
SCHEDULES_RUN_AT_ONCE = 32  # About two milliseconds: so that ten thousand at once stall nobody.
SCHEDULE_TICKS_CAUGHT_UP_MAX = 1_000  # Older ones are missed, whatever `catch_up` is.
SCHEDULE_TICKS_AT_ONCE = 16  # Messages that one schedule publishes in one go.
SCHEDULE_LATE_SECONDS = 10  # A tick that is later was missed, for a schedule that catches up with none.
SCHEDULE_RETRY_SECONDS = 1  # After a publish that may succeed soon.

# Search
SEARCH_ROWS_MAX = 4_096  # Examined in one step of a search; approximate.
SEARCH_ROWS_CROWDED = 256  # The same, while other clients wait.
SEARCH_TOPICS_MAX = 1_000  # Sets of topics that one search looks up; if more match, it examines all messages.
SEARCH_PAGE_MAX = 1_000
SEARCH_IDS_MAX = 1_000  # Messages that one search, or one redrive, names by their ids.
TEXT_BYTES_MAX = 1024  # That is looked for in bodies or reasons.
PAGE_DEFAULT, PAGE_MAX = 100, 1000  # Rows in one page of a list.
QUESTION_SECONDS_MAX = 60.0  # How long a shard may take for an answer.
SEARCH_PAGE_DEFAULT = 100
SEARCH_SECONDS_MAX = 2.0  # Then the page is returned as it is, with a cursor to continue from.

# Batches of stream processors
STAGED_CHUNK_BYTES_MAX = 4 << 20
STAGED_CHUNK_ROWS_MAX = 10_000
STAGED_DECODED_BYTES_MAX = 64 << 20  # Per column of a chunk whose values are in a dictionary.
STAGED_CHUNKS_MAX = 65_536  # In all parts of all batches.
STAGED_PARTS_MAX = 10_000  # Per commit.
STAGED_QUERIES_MAX = 50_000  # Queries whose last batch is remembered; the least recent one is forgotten.
ADMITTED_ROWS_MAX = 2048  # Per step, if the messages are alike.
ADMITTED_MESSAGES_MAX = 256  # Per step, if they are not.
ADMITTED_TO_TOPICS_MAX = 16  # Per step, if they have topics: each may go to many channels.

CLAIMED_MAX = 2_000  # Messages in one request of a stream processor.
LEASE_SECONDS_MAX = 7 * 86_400

# Jobs: redrives and purges
JOBS_MAX = 16  # Of one kind, running at the same time.
JOBS_REMEMBERED_MAX = 100  # Jobs that have ended and can still be queried.
JOB_ANSWER_SECONDS = 2.0  # A job that takes longer is answered with 202.
REDRIVE_AT_ONCE = 200  # Messages moved in one turn of the event loop.
PURGE_AT_ONCE = 128  # Messages deleted in one turn of the event loop.
PURGE_PAUSE_SECONDS = 0.002  # Between two of these turns, for other clients.

# The trace of a message in the log
TRACE_RECORDS_MAX = 1_000  # If there are more, the oldest except the first are left out.
TRACE_BYTES_MAX = 16 << 20
TRACE_PLACES_MAX = 1_000  # Queues that a message has been in.
TRACES_MAX = 16  # At the same time.
TRACE_INDEX_BYTES_MAX = 64 << 20  # Indexes of segments in memory.

# Waiting for what becomes of messages
WAIT_SECONDS_MAX = 60
WAITED_MAX = 100_000  # Messages that clients wait for at once.
WAIT_TRACES_MAX = 4  # Of them, looked up in the log at once.
RECALL_TRACES_MAX = 4  # Messages whose past is looked up for those who follow them, at once.
FOLLOW_RETRY_SECONDS = 0.5  # Between two attempts to follow a message whose shard is not served now.
WAIT_GATHER_SECONDS = 0.05  # How long an answer waits for others that are being looked up.
WAIT_REFUSED_SECONDS = 0.05  # Between two questions to a shard that does not know yet whether a client may wait.
WAIT_LOOK_SECONDS = 2.0  # How long a look at what has happened before may take, if the client waits for less.
RECENT_MESSAGES_MAX = 32_768  # Whose end is known without a look at the log; up to twice as many.
RECENT_BYTES_MAX = 16 << 20  # Of their results.

# The log
BATCH_BYTES_MAX = 64 << 20  # If a batch would grow beyond this, messages are refused until it is synced.
SEGMENT_BYTES_MIN = 64 << 10
SEGMENT_BYTES_MAX = 1 << 30
TAIL_BYTES_MAX = 32 << 20  # Recent batches kept in memory for readers.

# Shards, and links between workers
SHARDS_OF_NAMES_MAX = 65_536  # Queues whose shard is remembered.
LINK_BYTES_MAX = 64 << 20  # Commands on one link that are not answered. Those that wait for a message do not count.
LINK_FRAME_BYTES = 1 << 20  # What was collected is sent before the end of the turn if it has grown to this.
LINK_PART_BYTES = 256 << 10  # Of a long body that crosses a link in parts.
LINK_FRAME_BYTES_MAX = 256 << 20  # A frame and the largest single answer.
LINK_UNSENT_BYTES_MAX = 512 << 20  # A link whose other end leaves more unread is closed.
COURIER_BYTES_MAX = 1 << 20  # One answer to another shard that asks for what it is owed; at least one message.
COURIER_MESSAGES_MAX = 1000
COURIER_RECENT_BYTES = 8 << 20  # Messages for other shards that are kept in memory, so that the log is read once.
COURIER_READ_BYTES = 64 << 10  # Of the log, looked through in one turn.
VERSIONS_GATHER_SECONDS = 0.02  # Versions wait so long for others, unless somebody waits for one of them.
VERSION_BYTES = 64  # What a version that another shard answers for takes there, without its key, about.
COURIER_PROGRESS_RECORDS = 10_000  # After so many events a cursor is moved, even if nothing was found in them.
ARRIVAL_LOOK_SECONDS = 0.01  # Between two looks for a message that is on its way to another shard,
ARRIVAL_SECONDS_MAX = 2.0  # and for how long its document waits until it is there.
LOCATE_QUESTIONS_PER_SHARD = 8  # About one message that moves while it is looked for; then the client tries again.
COURIER_PROGRESS_BYTES = 2 << 20  # The same, in bytes of log: it is kept for cursors that have not moved.
COURIER_WAIT_SECONDS = 60  # How long a shard waits for what it is owed before it asks again.
COURIER_RETRY_SECONDS = 0.1  # After a shard could not be asked.
KEYS_WAIT_SECONDS = 5.0  # For objects and keys that another shard answers for, and that a third one may have.
PROMISES_SECONDS_MAX = 1.0  # How long an answer waits for other shards to forget what is here now, or nowhere.
DOUBT_SECONDS = 10  # How long what was in flight to a log that failed waits until that is read again.
ASK_AGAIN_LOOK_SECONDS = 0.1  # Between two looks for the process that has a shard whose commands are in doubt.
OUTCOMES_KEPT_SECONDS = 3600  # Of commands of a process that does not ask any more.
LINK_CLIENTS_MAX = 4096  # Clients that the other end of a link knows.
UNIX_PATH_BYTES_MAX = 107  # Of a Unix socket, on Linux.
PART_RETRY_SECONDS = 0.5  # Between two questions to a shard that is away, while others wait for the same client.
WORKER_RESTART_SECONDS = 1.0  # A worker that was killed is started again at most this often.
BEAT_SECONDS = 0.2  # How often a worker notes that it is alive, and looks whether the others are.
LATE_SECONDS = (
    0.5  # After this silence others accept connections in place of a worker, and do not ask it for figures.
)
AWAY_SECONDS = 2.0  # After this silence the shards of a worker count as unreachable.
assert 2 * BEAT_SECONDS < LATE_SECONDS < AWAY_SECONDS
SILENCE_SECONDS_DEFAULT = (
    10.0  # Shorter, and a machine that swaps would lose workers that only wait for their memory.
)
SILENCE_LOOK_SECONDS = 0.25  # How often the supervisor looks.
SILENCE_KILL_SECONDS = 60.0  # It kills no more than one worker in this time: what silences several is not in them.
STACK_SECONDS_MAX = 1.0  # How long a silent worker has to say what it is doing.
STACK_PAUSE_SECONDS = 0.1  # What it says is complete when nothing followed for this long.
HEALTH_SECONDS_MAX = 0.25  # How long /health waits for what a worker that is heard says of itself.
FIGURES_SECONDS_MAX = 1.0  # The same, for metrics.
ORPHANS_SECONDS = 5.0  # How much longer than `stop_seconds` a start waits for workers whose supervisor was killed.
TOKENS_KNOWN_SECONDS_MAX = 20.0  # How long a change of tokens may take to reach all workers.
LINK_BEAT_SECONDS = 2.0  # How often something is sent on a link to another machine.
LINK_SILENCE_SECONDS_MAX = 6.0  # Such a link is closed after this long without anything from the other end.
assert LINK_SILENCE_SECONDS_MAX > 2 * LINK_BEAT_SECONDS
NODE_LOOK_SECONDS = 0.5  # How often a node looks at the tables of its store.
NODE_IMPATIENT_SECONDS = 0.1  # The same, while it waits for a shard that another node is to hand over.
NODE_REFUSED_SECONDS = 60.0  # How long a node leaves a shard alone that it could not open.
NODE_WAIT_SECONDS = 10.0  # How often a node that cannot begin says what it waits for.
LOG_PER_SNAPSHOT_BYTE = 4  # Bytes of log that are written for each byte of a snapshot, at least.
# Clients wait while another node takes over a log in a store, so it has snapshots more often.
STORED_LOG_PER_SNAPSHOT_BYTE = 2
STORED_SNAPSHOT_BYTES = 8 << 20
REPLAY_BYTES_SHORT = 256 << 10  # A shard is handed over when the next owner need not replay more than this.
LINK_RETRY_SECONDS = 0.1  # How often a worker tries to connect to one that it has no link to.
LINKS_SECONDS_MAX = 2.0  # How long a worker that starts waits for its links before it listens.

# Object History
HISTORY_KEYS_MAX = 1 << 32
HISTORY_KEYS_DEFAULT = 100_000_000
HISTORY_BATCH_KEYS = 65_536  # Written together; approximate. More touch fewer pages per key, but exceed the caches.
# Written in one transaction: each key may touch a page, which stays in memory until the end of the transaction.
HISTORY_TRANSACTION_KEYS = 16_384
HISTORY_UNWRITTEN_MAX = 4 * HISTORY_BATCH_KEYS  # Versions that wait in memory; with more, publishes are refused.
HISTORY_READS_MAX = 1024  # How many reads to do between checks of how much of the file is mapped.
HISTORY_MAP_BYTES = 1 << 38  # Of address space, not of memory: the file cannot grow larger.
HISTORY_MAPPED_BYTES_MAX = 256 << 20  # Of the file, in the memory of the broker; more is dropped.
HISTORY_WRITER_MAPPED_BYTES_MAX = 32 << 20  # The same, for the process that writes the file.
HISTORY_TRIMMED_MAX = 4 * HISTORY_BATCH_KEYS  # Versions no longer in the log that are removed with one batch.
HISTORY_STEPS_MAX = 1000  # Versions of a key that are examined for one answer.
VERSIONS_SHOWN_DEFAULT = 10
VERSIONS_SHOWN_MAX = 100

# Readers of the Event Log
READ_BYTES = 2 << 20  # Of the log, read and decoded at once.
PIECE_BYTES = 256 << 10  # Of a stream, passed to the shell at once; approximate.
RANGE_BYTES_DEFAULT = 16 << 20  # Whole batches in one answer; a single one always fits.
RANGE_BYTES_MAX = 1 << 30
BACKUP_PAUSE_SECONDS_MAX = 2.0  # So long commits wait for the moment at which all shards are backed up.
BACKUP_PINNED_SECONDS = 120  # After a request of a backup, the log keeps its files for this long.
FOLLOW_SECONDS = 0.02  # The shortest time between two wake-ups of followers.
FOLLOWED_MAX = 1 << 20  # Messages that one reader follows because of their topics: 9 bytes each.
QUEUES_REMEMBERED_MAX = 100_000  # Names of queues that no longer exist.

# File descriptors
DESCRIPTORS_MIN = 128  # Fewer are too few for a broker.
DESCRIPTORS_RESERVED_MIN = 256  # For files, and for connections that are accepted and then refused.
DESCRIPTORS_RESERVED_MAX = 16_384
BACKLOG_MAX = 4096  # Connections that wait to be accepted, per address.
HANDSHAKE_BYTES_MAX = 128 << 10  # Of a TLS handshake: certificates of clients are a few KiB.

# Answers that clients have not read
UNREAD_BYTES_DEFAULT = 256 << 20  # All connections together.
UNREAD_BYTES_MIN = 16 << 20
ROOM_TURN_BYTES = 8 << 20  # Of answers that are decided and not given, and so made in one turn of the event loop.
OUTBOX_PIECE_BYTES = 64 << 10  # Of what a client has not taken: it is freed piece by piece.
ROOM_MESSAGE_BYTES = 2 << 10  # That a message in an answer counts beside its own bytes, for what it takes to make it.
ROOM_EACH_BYTES = 4 << 20  # A client that has not taken this much gets no more.
ROOM_LONG_MESSAGES = 16  # An answer with more may take longer to make than a light request: it takes turns.
ROOM_LONG_AT_ONCE = 800  # Messages of long answers in a turn of the event loop, as long as none waits for its turn.
ROOM_TURNS_MAX = 128  # Commands that waited for room and are decided in one turn.
ROOM_CROWDED = 1 / 2  # Of it: from there on, other processes make no answers for this one without its leave,
ROOM_CROWDED_UNTIL = 3 / 8  # until it is down to this.
ROOM_WAIT_SECONDS_MAX = 1.0  # After that, one that holds nothing gets room at the cost of who holds the most.

# Turns of the event loop, which connections share
LIGHT_BYTES_MAX = 1 << 10  # A read up to this is handled at once.
LIGHT_LINES_MAX = 40  # So is a larger read with at most this many lines: it contains only a few requests.
PART_BYTES_CROWDED = 256  # Of a read, handled in one turn while others wait: some requests.
PART_BYTES = 8 << 10  # The same, if no others wait.
PART_BODY_BYTES_CROWDED = 2 << 10  # Of a body, which is only stored.
PART_BODY_BYTES = 256 << 10
COMMANDS_PER_SAMPLE = 17  # One of so many commands is timed. A prime, so that no client's habit is missed.
QUEUES_PER_PART = 10  # Described in one part of a list, or of a scrape.
SAMPLES_PER_PART = 50  # Written in one part of a scrape.
WORKS_AT_ONCE_MAX = 16  # Long answers that are being made; further ones wait.
STATS_QUEUES_PER_TURN = 100  # Whose figures are taken in one turn.
TURN_SECONDS = 0.001  # Of one turn of the event loop, for all connections with more to do.
TURN_CROWDED_SECONDS = 0.0001
TURN_BEGIN_SECONDS = 0.01  # Of one turn of the event loop, for the first parts of what was just read,
TURN_BEGIN_CROWDED_SECONDS = 0.001  # and while others wait.
TURN_CROWDED_PARTS_MAX = 24  # The same, in parts.
TURN_MANY = 100  # If so many connections take turns, their parts are small: who comes next would wait for all.
TURN_REST_SECONDS_MAX = 0.001  # How long all of them pause for a light request.
TURN_REMEMBER_SECONDS = 0.05  # How long they leave time for further light requests after one.
TURN_COSTLY_SECONDS = (
    0.002  # What takes longer to read is many commands: they are decided at once, and not with others,
)
TURN_COSTLY_CROWDED_SECONDS = 0.00015  # so that who has sent them pays for it.
# A large read that took at most this long is light. Between the two it is neither, so that a client whose reads all
# take about as long does not crowd out some of its own.
TURN_LIGHT_SECONDS = TURN_COSTLY_CROWDED_SECONDS / 2
TURN_REST = 3  # While light requests arrive, all others together pause so many times as long as they have taken,
TURN_QUIET_SECONDS = 0.005  # unless there was none for this long.
TURN_DEBT_SECONDS_MAX = 0.1  # How far one client can be behind the others because of what it has taken.
TURN_CLIENTS_MAX = 1024  # Whose share is remembered while they have nothing to do.

# HTTP
REQUEST_TARGET_BYTES_MAX = 8 << 10
REQUEST_HEADERS_BYTES_MAX = 32 << 10
BODY_BYTES_UNASKED = 16 << 10  # A body up to this size is accepted in any request, before its route is known.
REQUEST_BODY_BYTES_MAX = 16 << 20  # A multipart batch; a single message is bounded by BODY_BYTES_MAX.
FAREWELL_BYTES_MAX = REQUEST_BODY_BYTES_MAX  # What comes after the last answer; a client that sends more is cut off.
PIPELINE_REQUESTS_MAX = 16  # Of one connection, handled at the same time; more stay unread.
KNOWN_HEADS_MAX = 1024  # Request heads that are remembered, so that they need not be parsed again.
KNOWN_HEAD_BYTES_MAX = 1024  # For the target, and for the header fields, of each.

# Lines and conversations
LINE_ENVELOPE_BYTES_MAX = 4 << 10  # A command without its body.
LINE_BYTES_MAX = 8 << 20  # A body of 1 MiB as JSON takes up to six times as much, each byte escaped.
REFUSED_LOGIN_SECONDS = 0.2  # The delay before a wrong token is answered; it doubles after each few failures
LOGIN_FAILURES_PER_DOUBLING = 8  # of the same address,
LOGIN_SECONDS_MAX = 10.0  # up to this,
LOGIN_FORGET_SECONDS = 600.0  # until there was none for this long.
LOGIN_ADDRESSES_MAX = 16_384  # Whose failures are known.
LOGINS_HELD_MAX = 1000  # Refusals that are delayed at once; clients beyond it are disconnected.
GUEST_BYTES_MAX = 16 << 10  # Of a line or a message of a client that has not shown a token.
LINES_PER_TURN_MAX = 128  # Of one connection, so that the disk begins with the first while the next are read.
LINES_PER_TURN_CROWDED_MAX = 16  # The same, while others wait.
LINES_PART_BYTES = 32 << 10  # Of a read, split into lines at once.
LINES_PART_BYTES_CROWDED = 4 << 10
LINES_REPLY_BYTES_MAX = 4 << 20  # Of one connection, under way at once; approximate.
LINES_UNSENT_BYTES_HIGH = 256 << 10  # A client that leaves more replies than this unread is not read from.
CONNECTION_QUEUES_MAX = 1000  # Queues that one connection may subscribe to and wait for.

# The lake
LAKE_EVENTS_PER_BATCH = 3_000_000  # Of a stream that lags behind; a batch then has at least a third of it.
LAKE_BYTES_PER_BATCH = 256 << 20
LAKE_FILE_BYTES = 128 << 20  # A file of at least this size is not merged while the stream runs.
LAKE_PUBLISH_SECONDS = 60.0  # The shortest pause between two publications of the tables.
LAKE_PUBLISH_REST = 10  # The pause is also at least this many times as long as the last publication took.
LAKE_PUBLISH_MEMORY_BYTES = 1 << 30  # For DuckDB during a publication; more goes to a temporary file.
LAKE_FILES_MIN = 16  # How many small files are merged into one.
LAKE_LOG_RETENTION_DAYS = 7
PIPELINE_PAUSE_SECONDS_MAX = 60.0  # Before a failed pipeline is restarted.
LAKE_VACUUM_HOURS = 24  # How long files that left a table are kept for readers that still use them.
LEASE_DAYS_MAX = 7  # A delivery not settled this long after its lease ended is dropped from the table.
CONSUMERS_SHOWN_MAX = 100  # Per message.

assert BODY_BYTES_MAX * 6 + LINE_ENVELOPE_BYTES_MAX <= LINE_BYTES_MAX, "a body fits with all of it escaped"

# WebSocket
WS_MESSAGE_BYTES_MAX = 8 << 20  # A body of 1 MiB as JSON takes up to six times as much, each byte escaped.
WS_REQUESTS_MAX = 1024  # Of one connection, handled at the same time; more stay unread.
WS_REQUEST_BYTES_MAX = 4 << 20  # The same, in bytes.
WS_TURN_MESSAGES_MAX = 512  # Of one connection; then others have their turn, and the disk can begin.
WS_TURN_MESSAGES_CROWDED_MAX = 64  # The same, while others wait.
WS_PART_BYTES = 80 << 10  # Of a read, split into messages at once.
WS_PART_BYTES_CROWDED = 256
WS_UNSENT_BYTES_MAX = 64 << 20  # A client with more unread bytes is disconnected.
WS_CLOSE_SECONDS_MAX = 5  # A client that does not answer a close frame by then is disconnected.

# Quotas
ACCOUNTS_MAX = 65_536  # Addresses, and identities, whose use is known; about 1 KB each if all quotas are set.
ACCOUNTS_SWEPT_MIN = 1024  # With fewer there is no sweep.
ADDRESS_PREFIX_BITS = 64  # Of an IPv6 address: one customer has at least so many addresses.
QUOTA_REST_SECONDS_MIN = 0.1  # How long nothing is read from a client that is over its quota,
QUOTA_REST_SECONDS_MAX = 1.0  # and at most.
QUOTA_SLICES = 8  # Workers that have not asked the one that counts may use one of so many parts of a quota, together.
QUOTA_TIDY_SECONDS = 1.0  # What a worker has borrowed and not used for so long, it returns.
FAULTS_PER_SECOND_MAX = 10  # Connections of one client that end with its fault; later ones are read from later,
FAULT_REST_SECONDS_MAX = 10.0  # at most by this.
OFFENDERS_MAX = 1024  # Accounts over their quota whose refusals are counted for the log.
OFFENDERS_LOGGED_MAX = 5
OFFENDERS_LOG_SECONDS = 60.0  # Between two lines in the log.

# Push
PUSH_URL_BYTES_MAX = 2048
PUSH_IN_FLIGHT_MAX = 1024  # Per channel.
PUSH_SECONDS_MAX = 3600
PUSH_RESPONSE_HEAD_BYTES_MAX = 32 << 10
PUSH_RESPONSE_BODY_BYTES_MAX = 64 << 10  # The rest of a longer response is not read.
PUSH_LEASE_MARGIN_SECONDS = 5  # How much longer than the request a lease is: time to release the message.
PUSH_IDLE_SECONDS = 15  # How long a connection is kept for the next message.
PUSH_WAIT_SECONDS = 3600  # How long one fetch waits before it is repeated.
PUSH_PAUSE_SECONDS = 1  # How long a channel pauses after the broker has refused its fetch.
PUSH_ERROR_CHARACTERS_MAX = 300
RETRY_AFTER_SECONDS_MAX = 86_400

# glovebox
SESSION_ID_MAX = (1 << 53) - 1  # The largest safe integer of JavaScript.
SESSION_PLACES = 1024  # Processes that the number of a session can name. The rest of it cannot be guessed.
NOTIFY_MAX = 64  # Stages that one post lists; there are seven.
GATHERED_MAX = 256  # Requests of one connection that arrived together and become one command.
GATHERED_RUN_MIN = 32  # Publishes among them that are decided on their own. Fewer join those of other connections.
HELD_LEASES_MAX = 10_000  # Per session; beyond it, the oldest is released.
BLOCK_SECONDS_MAX = 86_400
WORK_SECONDS_MAX = 365 * 86_400
LOST_SESSIONS_BYTES_MAX = 256 << 20  # Waiting for clients that lost their connection, all together.

assert SCHEDULE_BODY_BYTES_MAX <= BODY_BYTES_MAX
assert NAME_BYTES_MAX * 3 < REQUEST_TARGET_BYTES_MAX, "a percent-encoded name fits into a request target"
assert BODY_BYTES_MAX + HEADERS_BYTES_MAX <= REQUEST_BODY_BYTES_MAX <= BATCH_BYTES_MAX
assert BODY_BYTES_MAX <= FETCH_BYTES_MAX
assert 4 * POST_MESSAGES_MAX + 100 < REQUEST_KEYS_MAX, "a post with every field of every message fits"
assert 5 * PULL_QUEUES_MAX + 2 * RESULTS_MAX + 100 < REQUEST_KEYS_MAX, "a pull with every field fits"
assert BODY_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX + (64 << 10) <= STAGED_CHUNK_BYTES_MAX, "a row fits"
assert 6 * (BODY_BYTES_MAX + NAME_BYTES_MAX) + 1024 <= WS_MESSAGE_BYTES_MAX, "every message can be posted as JSON"
assert 5 * FETCH_BYTES_MAX < WS_UNSENT_BYTES_MAX, "one fetch does not disconnect its client"
assert QUEUES_MAX <= PUBLISH_DELIVERIES_MAX, "one message may go to every queue"
assert RUN_MESSAGES_MIN <= GATHERED_RUN_MIN <= GATHERED_MAX <= BATCH_MESSAGES_MAX
assert GATHERED_MAX <= WS_REQUESTS_MAX
assert USER_HEADERS_BYTES_MAX + 16 * USER_HEADERS_MAX < HEADERS_BYTES_MAX, "they fit with the producer's time"
assert CONTENT_TYPE_BYTES_MAX <= HEADER_VALUE_BYTES_MAX < HEADERS_BYTES_MAX
assert TOPICS_MAX * (NAME_BYTES_MAX + 1) < NAMES_CHARACTERS_MIN
assert NAMES_DEFAULT <= NAMES_MAX < NAME_NUMBER_MAX
assert KEY_BYTES_MAX < 1 << 16, "a key's length is two bytes on disk"
assert 2 * ROWS_PER_CHUNK <= SEARCH_ROWS_CROWDED <= SEARCH_ROWS_MAX
assert PART_BYTES_CROWDED <= LIGHT_BYTES_MAX <= PART_BYTES <= PART_BODY_BYTES
assert RESULT_BYTES_MAX <= MESSAGE_BYTES_MAX <= FETCH_BYTES_MAX <= UNREAD_BYTES_MIN // 4, "one answer fits in a turn"
assert FETCH_BYTES_MAX < UNREAD_BYTES_MIN <= UNREAD_BYTES_DEFAULT, "one answer closes no connection"
assert TURN_CROWDED_SECONDS <= TURN_SECONDS
assert ROWS_PER_CHUNK & (ROWS_PER_CHUNK - 1) == 0
assert PURGE_AT_ONCE >= ROWS_PER_CHUNK
assert ROWS_PER_CHUNK < 256, "a chunk counts its rows in a byte"
assert SEGMENT_BYTES_MIN < SEGMENT_BYTES_MAX
assert VERSIONS_SHOWN_MAX <= HISTORY_STEPS_MAX
