/* Keeps a number of requests in flight on each of many connections, and counts the answers.

       pour FRAMING DEPTH WARM_SECONDS SECONDS < a line "DESCRIPTOR FILE" for each connection

   `bench/pour.py` compiles it, opens the connections and passes them on: each has the descriptor of a socket and a file
   with the request that is sent on it again and again. Nothing is parsed but the length of an answer and whether it is
   the expected one, so that the load takes little of the cores that the brokers are measured on.

   Prints: answers in the timed section, its seconds, all answers, processor seconds for all of them, wrong answers, and
   on a second line the first of those. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 1024, READ_BYTES = 1 << 16, COPIES_BYTES = 1 << 16, EVENTS = 256, SILENCE_MS_MAX = 20000 };

typedef struct {
    int descriptor, waits_for_space;
    char *copies;                       /* The request as often as it fits, so that many are sent in one call. */
    size_t request_bytes, copies_bytes; /* Of one request, and of all copies. */
    size_t sent, unsent;                /* Where the next byte is in the copies; what may be sent but is not. */
    char input[READ_BYTES];
    size_t kept; /* The beginning of an answer that is not complete. */
} Connection;

static Connection *connections[CONNECTIONS_MAX];
static long answers, wrong;
static char complaint[201];
static int events_of;
static int (*size_of_answer)(const char *, size_t, int *);

static void stop(const char *reason) {
    fprintf(stderr, "pour: %s\n", reason);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double processor_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* ── Answers: each function returns the bytes of the first one, or 0 if it is not complete ──────────────────────── */

static int http_answer(const char *data, size_t size, int *is_right) {
    static const char length_name[] = "\r\ncontent-length:";
    const char *end = memmem(data, size, "\r\n\r\n", 4);
    if (!end)
        return 0;
    long length = -1;
    for (const char *line = data; line < end; line = memmem(line + 2, end + 2 - line, "\r\n", 2))
        if (!strncasecmp(line, length_name, sizeof length_name - 1))
            length = atol(line + sizeof length_name - 1);
    if (length < 0)
        stop("an answer has no length");
    size_t whole = end + 4 - data + length;
    *is_right = data[9] == '2';
    return whole <= size ? (int)whole : 0;
}

static int websocket_answer(const char *data, size_t size, int *is_right) {
    const unsigned char *head = (const unsigned char *)data;
    if (size < 4)
        return 0;
    size_t start = 2, length = head[1];
    if (length == 126) {
        start = 4;
        length = head[2] << 8 | head[3];
    } else if (length == 127)
        stop("an answer is longer than 65535 bytes");
    if (start + length > size)
        return 0;
    *is_right = memmem(data + start, length, "\"notice\":\"sync\"", 15) != NULL;
    return (int)(start + length);
}

/* ── Connections ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static Connection *open_connection(int descriptor, const char *path) {
    Connection *self = calloc(1, sizeof *self);
    struct stat facts;
    int file = open(path, O_RDONLY);
    if (!self || file < 0 || fstat(file, &facts))
        stop(path);
    self->descriptor = descriptor;
    self->request_bytes = facts.st_size;
    size_t copies = COPIES_BYTES / self->request_bytes + 1;
    self->copies_bytes = copies * self->request_bytes;
    self->copies = malloc(self->copies_bytes);
    if (!self->copies || read(file, self->copies, self->request_bytes) != (ssize_t)self->request_bytes)
        stop(path);
    for (size_t copy = 1; copy < copies; copy++)
        memcpy(self->copies + copy * self->request_bytes, self->copies, self->request_bytes);
    close(file);
    return self;
}

static void await(Connection *self, int what, unsigned events) {
    struct epoll_event event = {.events = events, .data.ptr = self};
    if (epoll_ctl(events_of, what, self->descriptor, &event))
        stop("a connection cannot be watched");
}

static void send_more(Connection *self) {
    while (self->unsent) {
        size_t most = self->copies_bytes - self->sent;
        ssize_t sent = write(self->descriptor, self->copies + self->sent, self->unsent < most ? self->unsent : most);
        if (sent < 0 && errno != EAGAIN)
            stop("a connection cannot be written");
        if (sent < 0)
            break;
        self->unsent -= sent;
        self->sent = (self->sent + sent) % self->copies_bytes;
    }
    int waits = self->unsent > 0;
    if (waits != self->waits_for_space) {
        self->waits_for_space = waits;
        await(self, EPOLL_CTL_MOD, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

static void receive(Connection *self) {
    ssize_t got = read(self->descriptor, self->input + self->kept, READ_BYTES - self->kept);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0)
        stop("the server closed a connection, or an answer is too long");
    size_t size = self->kept + got, at = 0;
    int bytes, is_right, found = 0;
    while ((bytes = size_of_answer(self->input + at, size - at, &is_right))) {
        if (!is_right && !wrong++)
            memcpy(complaint, self->input + at, (size_t)bytes < sizeof complaint ? (size_t)bytes : sizeof complaint - 1);
        at += bytes;
        found++;
    }
    memmove(self->input, self->input + at, size - at);
    self->kept = size - at;
    answers += found;
    self->unsent += found * self->request_bytes;
    send_more(self);
}

static void run_until(double deadline) {
    struct epoll_event events[EVENTS];
    while (now() < deadline) {
        int count = epoll_wait(events_of, events, EVENTS, SILENCE_MS_MAX);
        if (!count)
            stop("no answer for 20 s");
        for (int index = 0; index < count; index++)
            if (events[index].events & ~EPOLLOUT)
                receive(events[index].data.ptr);
            else
                send_more(events[index].data.ptr);
    }
}

int main(int count, char **arguments) {
    if (count != 5)
        stop("pour http|websocket DEPTH WARM_SECONDS SECONDS");
    size_of_answer = strcmp(arguments[1], "http") ? websocket_answer : http_answer;
    int depth = atoi(arguments[2]), opened = 0, descriptor;
    char path[4096];
    events_of = epoll_create1(0);
    while (opened < CONNECTIONS_MAX && scanf("%d %4095s", &descriptor, path) == 2)
        connections[opened++] = open_connection(descriptor, path);
    for (int index = 0; index < opened; index++) {
        await(connections[index], EPOLL_CTL_ADD, EPOLLIN);
        connections[index]->unsent = depth * connections[index]->request_bytes;
        send_more(connections[index]);
    }
    run_until(now() + atof(arguments[3]));
    double began = now();
    long before = answers;
    run_until(began + atof(arguments[4]));
    printf("%ld %f %ld %f %ld\n%s\n", answers - before, now() - began, answers, processor_seconds(), wrong, complaint);
    return 0;
}
