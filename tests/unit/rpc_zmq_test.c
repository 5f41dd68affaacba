/* KV events over ZeroMQ: the configuration, messages as vLLM writes them, replays, bad readers. */
#include "rpc/zmq/publisher.h"
#include "tests/unit/rpc_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <msgpack.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum { PAGE = 4, KEPT = 2048, WAIT_MS = 60000 };

/* ---- events and readers ---------------------------------------------------------------------- */

static const char topic_of_all[] = "kv@pod@model";

typedef struct stage {
    char dir[64], endpoint[128], replay[128];
    rpc_events *events;
    publisher *publisher;
    void *context;
} stage;

static void store(stage *s, uint64_t n)
{
    uint32_t tokens[PAGE] = {(uint32_t)n, (uint32_t)n + 1, (uint32_t)n + 2, 70000};
    rpc_events_on_block(s->events, &(pkv_block_event){.kind = PKV_BLOCK_STORED,
                                                      .hash = n << 40,
                                                      .parent = (n - 1) << 40,
                                                      .tokens = tokens});
}

static status publish(stage *s, const char *json)
{
    error err;
    const rpc_options o = {
        .events = s->events, .model = {.page_tokens = PAGE}, .kv_events_config = json};
    return publisher_create(&o, &s->publisher, &err);
}

/* Starts a publisher that listens in a folder of its own, after n_before events. */
static stage *open_stage(uint64_t n_before)
{
    char json[512];
    stage *s = calloc(1, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "%s/octavo-zmq-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->endpoint, sizeof s->endpoint, "ipc://%s/events", s->dir);
    snprintf(s->replay, sizeof s->replay, "ipc://%s/replay", s->dir);
    assert_true(status_ok(rpc_events_create(KEPT, PAGE, &s->events)));
    snprintf(json, sizeof json,
             "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"%s\","
             "\"replay_endpoint\":\"%s\",\"topic\":\"%s\"}",
             s->endpoint, s->replay, topic_of_all);
    for (uint64_t n = 1; n <= n_before; n++) store(s, n);
    assert_true(status_ok(publish(s, json)));
    assert_non_null(s->publisher);
    s->context = zmq_ctx_new();
    return s;
}

static void close_stage(stage *s)
{
    publisher_destroy(s->publisher);
    zmq_ctx_term(s->context);
    rpc_events_destroy(s->events);
    rmdir(s->dir); // ZeroMQ removes its sockets' files
    free(s);
}

static void *open_reader(stage *s, int type, const char *endpoint)
{
    const int wait_ms = WAIT_MS, none = 0;
    void *reader = zmq_socket(s->context, type);
    assert_int_equal(zmq_setsockopt(reader, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms), 0);
    assert_int_equal(zmq_setsockopt(reader, ZMQ_LINGER, &none, sizeof none), 0);
    if (type == ZMQ_SUB) assert_int_equal(zmq_setsockopt(reader, ZMQ_SUBSCRIBE, "", 0), 0);
    assert_int_equal(zmq_connect(reader, endpoint), 0);
    return reader;
}

/* Reads one part, which must be there; returns its size. */
static size_t read_part(void *reader, void *out, size_t size, bool more)
{
    int has_more;
    size_t n_more = sizeof has_more;
    int n = zmq_recv(reader, out, size, 0);
    assert_true(n >= 0 && (size_t)n <= size);
    assert_int_equal(zmq_getsockopt(reader, ZMQ_RCVMORE, &has_more, &n_more), 0);
    assert_int_equal(has_more, more);
    return (size_t)n;
}

static uint64_t read_number(void *reader)
{
    uint8_t bytes[8];
    uint64_t n = 0;
    assert_int_equal(read_part(reader, bytes, sizeof bytes, true), sizeof bytes);
    for (int i = 0; i < 8; i++) n = n << 8 | bytes[i];
    return n;
}

static const msgpack_object *find_member(const msgpack_object *map, const char *key)
{
    assert_int_equal(map->type, MSGPACK_OBJECT_MAP);
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];
        assert_int_equal(kv->key.type, MSGPACK_OBJECT_STR);
        if (kv->key.via.str.size == strlen(key) &&
            memcmp(kv->key.via.str.ptr, key, strlen(key)) == 0)
            return &kv->val;
    }
    fail_msg("no member %s", key);
    return NULL;
}

static bool is_text(const msgpack_object *o, const char *text)
{
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == strlen(text) &&
           memcmp(o->via.str.ptr, text, strlen(text)) == 0;
}

/* Checks the payload of the event that store(n) made; n 0: a message without events. */
static void check_payload(const char *bytes, size_t size, uint64_t n)
{
    msgpack_unpacked all;
    size_t at = 0;
    msgpack_unpacked_init(&all);
    assert_int_equal(msgpack_unpack_next(&all, bytes, size, &at), MSGPACK_UNPACK_SUCCESS);
    assert_int_equal(at, size);
    assert_int_equal(all.data.type, MSGPACK_OBJECT_ARRAY);
    assert_int_equal(all.data.via.array.size, 3);
    const msgpack_object *batch = all.data.via.array.ptr, *event = batch[1].via.array.ptr;
    assert_int_equal(batch[0].type, MSGPACK_OBJECT_FLOAT64);
    assert_true(batch[0].via.f64 > 1.6e9);
    assert_int_equal(batch[1].type, MSGPACK_OBJECT_ARRAY);
    assert_int_equal(batch[1].via.array.size, n ? 1 : 0);
    assert_int_equal(batch[2].via.u64, 0);
    if (n) {
        const msgpack_object *hashes = find_member(event, "block_hashes");
        const msgpack_object *parent = find_member(event, "parent_block_hash");
        const msgpack_object *tokens = find_member(event, "token_ids");
        assert_true(is_text(find_member(event, "type"), "BlockStored"));
        assert_int_equal(hashes->via.array.size, 1);
        assert_true(hashes->via.array.ptr[0].via.u64 == n << 40);
        if (n == 1) assert_int_equal(parent->type, MSGPACK_OBJECT_NIL);
        else assert_true(parent->via.u64 == (n - 1) << 40);
        assert_int_equal(tokens->via.array.size, PAGE);
        assert_true(tokens->via.array.ptr[0].via.u64 == n);
        assert_true(tokens->via.array.ptr[3].via.u64 == 70000);
        assert_int_equal(find_member(event, "block_size")->via.u64, PAGE);
        assert_int_equal(find_member(event, "lora_id")->type, MSGPACK_OBJECT_NIL);
        assert_int_equal(find_member(event, "medium")->type, MSGPACK_OBJECT_NIL);
        assert_int_equal(find_member(event, "lora_name")->type, MSGPACK_OBJECT_NIL);
    }
    msgpack_unpacked_destroy(&all);
}

/* Asks for a replay from a number on. A DEALER socket writes REQ's empty part itself. */
static void ask(void *dealer, uint64_t from)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(from >> (56 - 8 * i));
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, bytes, 8, 0), 8);
}

/* Reads a replay to its end. Returns how many messages came, which must be those from `first`, with
 * the topic of live ones. */
static uint64_t read_replay(void *dealer, uint64_t first)
{
    char topic[64], payload[512];
    for (uint64_t n = 0;; n++) {
        assert_int_equal(read_part(dealer, payload, sizeof payload, true), 0);
        size_t n_topic = read_part(dealer, topic, sizeof topic, true);
        uint64_t number = read_number(dealer);
        size_t size = read_part(dealer, payload, sizeof payload, false);
        if (number == UINT64_MAX) {
            assert_int_equal(n_topic, 0);
            assert_int_equal(size, 0);
            return n;
        }
        assert_int_equal(n_topic, strlen(topic_of_all));
        assert_memory_equal(topic, topic_of_all, strlen(topic_of_all));
        assert_true(number == first + n);
        check_payload(payload, size, number + 1);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define ON "{\"enable_kv_cache_events\":true,"

static void configurations(void **state)
{
    (void)state;
    static const struct {
        const char *json, *complaint; // NULL = accepted
        bool has_keys;
    } cases[] = {
        {"{}", NULL, true},
        {"{\"endpoint\":\"tcp://*:5557\"}", NULL, true},
        {"{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"topic\":\"kv@a@b\",\"hwm\":10}",
         NULL, false},
        {"{\"enable_kv_cache_events\":true,\"endpoint\":\"tcp://router:5557\"}", NULL, true},
        {ON "\"endpoint\":\"ipc:///run/a\",\"replay_endpoint\":\"tcp://127.0.0.1:5558\"}", NULL,
         true},
        {"{\"buffer_steps\":null}", NULL, false},
        {"", "line 1", false},
        {"[]", "must be a JSON object", false},
        {"{\"publisher\":\"kafka\"}", "publisher: 'kafka' is not zmq or null", false},
        {"{\"bananas\":1}", "kv-events-config.bananas: is unknown", false},
        {"{\"buffer_steps\":5}", "buffer_steps: the server decides", false},
        {"{\"hwm\":0}", "hwm", false},
        {"{\"topic\":7}", "topic", false},
        {ON "\"endpoint\":\"inproc://x\"}", "endpoint: 'inproc://x' must begin with tcp://", false},
        {ON "\"endpoint\":\"tcp://*:5557\"}", "would show the requests of all API keys", true},
        {ON "\"endpoint\":\"tcp://[::]:5557\"}", "would show the requests of all API keys", true},
        {ON "\"endpoint\":\"ipc:///a\",\"replay_endpoint\":\"tcp://10.0.0.1:1\"}",
         "replay_endpoint: 'tcp://10.0.0.1:1' would show", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error err = {{0}};
        status st = publisher_check(cases[i].json, cases[i].has_keys, &err);
        if (!cases[i].complaint) {
            if (!status_ok(st)) fail_msg("%s: %s", cases[i].json, err.text);
            continue;
        }
        assert_false(status_ok(st));
        if (!strstr(err.text, cases[i].complaint))
            fail_msg("%s: %s lacks %s", cases[i].json, err.text, cases[i].complaint);
    }
}

static void nothing_is_published_unasked(void **state)
{
    (void)state;
    stage s = {0};
    assert_true(status_ok(rpc_events_create(KEPT, PAGE, &s.events)));
    assert_true(status_ok(publish(&s, "{\"endpoint\":\"ipc:///nowhere/at/all\"}")));
    assert_null(s.publisher);
    assert_true(status_ok(publish(&s, "{\"enable_kv_cache_events\":true,\"publisher\":\"null\"}")));
    assert_null(s.publisher);
    /* An address that cannot be listened on is an error at once. */
    assert_int_equal(publish(&s, "{\"enable_kv_cache_events\":true,"
                                 "\"endpoint\":\"ipc:///nowhere/at/all\"}")
                         .code,
                     STATUS_IO);
    assert_null(s.publisher);
    rpc_events_destroy(s.events);
}

/* A subscriber gets every event from its subscription on, in order, those of private blocks
 * without contents. */
static void a_subscriber_follows(void **state)
{
    (void)state;
    enum { EVENTS = 3000 };
    stage *s = open_stage(3);
    void *reader = open_reader(s, ZMQ_SUB, s->endpoint);
    char topic[32], payload[512];
    const int short_ms = 10, wait_ms = WAIT_MS;
    uint64_t stored = 3;
    /* The subscription takes effect some time after the connection. */
    zmq_setsockopt(reader, ZMQ_RCVTIMEO, &short_ms, sizeof short_ms);
    zmq_pollitem_t item = {.socket = reader, .events = ZMQ_POLLIN};
    do store(s, ++stored);
    while (zmq_poll(&item, 1, short_ms) == 0);
    zmq_setsockopt(reader, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    uint64_t last = stored + EVENTS;
    while (stored < last) store(s, ++stored);
    rpc_events_on_block(s->events, &(pkv_block_event){.kind = PKV_BLOCK_STORED, .hash = 5});
    rpc_events_on_block(s->events, &(pkv_block_event){.kind = PKV_BLOCK_REMOVED, .hash = 6});
    rpc_events_on_block(s->events, &(pkv_block_event){.kind = PKV_CLEARED});
    uint64_t next = UINT64_MAX;
    for (bool over = false; !over;) {
        assert_int_equal(read_part(reader, topic, sizeof topic, true), strlen(topic_of_all));
        assert_memory_equal(topic, topic_of_all, strlen(topic_of_all));
        uint64_t number = read_number(reader);
        size_t size = read_part(reader, payload, sizeof payload, false);
        assert_true(next == UINT64_MAX || number >= next);
        next = number + 1;
        if (number < last) check_payload(payload, size, number + 1);
        if (number == last) check_payload(payload, size, 0);
        if (number == last + 1) assert_non_null(memmem(payload, size, "BlockRemoved", 12));
        if (number == last + 2) assert_non_null(memmem(payload, size, "AllBlocksCleared", 16));
        over = number == last + 2;
    }
    zmq_close(reader);
    close_stage(s);
}

static void missed_messages_come_again(void **state)
{
    (void)state;
    stage *s = open_stage(0);
    void *dealer = open_reader(s, ZMQ_DEALER, s->replay);
    ask(dealer, 0);
    assert_true(read_replay(dealer, 0) == 0);
    for (uint64_t n = 1; n <= 100; n++) store(s, n);
    /* The publisher's thread may not have reached the last events yet. */
    uint64_t got = 0;
    while (got < 100) {
        ask(dealer, 0);
        got = read_replay(dealer, 0);
    }
    ask(dealer, 60);
    assert_true(read_replay(dealer, 60) == 40);
    ask(dealer, 100);
    assert_true(read_replay(dealer, 100) == 0);
    ask(dealer, UINT64_MAX - 1);
    assert_true(read_replay(dealer, 0) == 0);
    /* What is no longer kept is left out. */
    for (uint64_t n = 101; n <= KEPT + 50; n++) store(s, n);
    do {
        ask(dealer, KEPT + 49);
        got = read_replay(dealer, KEPT + 49);
    } while (got == 0);
    ask(dealer, 0);
    assert_true(read_replay(dealer, 50) == KEPT);
    zmq_close(dealer);
    close_stage(s);
}

/* Requests of another form get no answer, and readers that take nothing hold up nobody. */
static void bad_readers_hurt_nobody(void **state)
{
    (void)state;
    enum { IDLE = 40 };
    stage *s = open_stage(0);
    void *bad = open_reader(s, ZMQ_DEALER, s->replay), *idle[IDLE];
    char junk[4096] = {0};
    for (uint64_t n = 1; n <= KEPT; n++) store(s, n);
    zmq_send(bad, junk, 8, 0);
    zmq_send(bad, "", 0, 0);
    zmq_send(bad, "", 0, ZMQ_SNDMORE);
    zmq_send(bad, junk, 7, 0);
    zmq_send(bad, "", 0, ZMQ_SNDMORE);
    zmq_send(bad, junk, 9, 0);
    zmq_send(bad, "", 0, ZMQ_SNDMORE);
    zmq_send(bad, junk, 8, ZMQ_SNDMORE);
    zmq_send(bad, junk, 8, 0);
    uint64_t got = 0;
    for (int i = 0; i < IDLE; i++) {
        const int few = 1;
        idle[i] = zmq_socket(s->context, ZMQ_DEALER);
        zmq_setsockopt(idle[i], ZMQ_RCVHWM, &few, sizeof few);
        zmq_setsockopt(idle[i], ZMQ_LINGER, &(int){0}, sizeof(int));
        zmq_connect(idle[i], s->replay);
        ask(idle[i], 0);
    }
    while (got < KEPT) {
        ask(bad, 0);
        got = read_replay(bad, 0);
    }
    /* Each answer above was one to a good request. */
    assert_int_equal(zmq_poll(&(zmq_pollitem_t){.socket = bad, .events = ZMQ_POLLIN}, 1, 200), 0);
    zmq_send(bad, "", 0, ZMQ_SNDMORE);
    zmq_send(bad, junk, sizeof junk, 0); // closes the connection, which the socket makes anew
    void *good = open_reader(s, ZMQ_DEALER, s->replay);
    ask(good, 0);
    assert_true(read_replay(good, 0) == KEPT);
    for (int i = 0; i < IDLE; i++) zmq_close(idle[i]);
    zmq_close(bad);
    zmq_close(good);
    close_stage(s);
}

/* ---- how many readers ------------------------------------------------------------------------ */

static struct sockaddr_in address_of(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static uint16_t find_port(void)
{
    struct sockaddr_in at = address_of(0);
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    close(fd);
    return ntohs(at.sin_port);
}

/* A connection that says nothing, which is made at once or comes later. */
static int connect_silently(uint16_t port, bool later)
{
    struct sockaddr_in at = address_of(port);
    int fd = socket(AF_INET, SOCK_STREAM | (later ? SOCK_NONBLOCK : 0), 0);
    int made = connect(fd, (struct sockaddr *)&at, sizeof at);
    if (later) assert_true(made == 0 || errno == EINPROGRESS);
    else assert_int_equal(made, 0);
    return fd;
}

static bool is_connected(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, wait_ms) == 1 && !(p.revents & POLLERR);
}

/* A publisher that listens on a port; s->endpoint is where a reader connects. */
static stage open_port_stage(uint16_t port, rpc_log *log)
{
    char json[128];
    stage s = {.context = zmq_ctx_new()};
    rpc_options o = {.model = {.page_tokens = PAGE}, .kv_events_config = json, .log = log};
    error err;
    assert_true(status_ok(rpc_events_create(KEPT, PAGE, &s.events)));
    o.events = s.events;
    snprintf(json, sizeof json, "{\"enable_kv_cache_events\":true,\"endpoint\":\"tcp://*:%u\"}",
             port);
    if (!status_ok(publisher_create(&o, &s.publisher, &err))) fail_msg("%s", err.text);
    snprintf(s.endpoint, sizeof s.endpoint, "tcp://127.0.0.1:%u", port);
    return s;
}

static void close_port_stage(const stage *s)
{
    publisher_destroy(s->publisher);
    zmq_ctx_term(s->context);
    rpc_events_destroy(s->events);
}

/* This process's end of the connection whose other end is `fd`; -1: it is not accepted yet. */
static int find_other_end(int fd)
{
    struct sockaddr_in own, other;
    socklen_t n = sizeof own;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &n), 0);
    for (int i = 0; i < 1024; i++) {
        n = sizeof other;
        if (getpeername(i, (struct sockaddr *)&other, &n) == 0 && other.sin_family == AF_INET &&
            other.sin_port == own.sin_port && i != fd)
            return i;
    }
    return -1;
}

static int tcp_option(int fd, int level, int name)
{
    int value = -1;
    socklen_t n = sizeof value;
    assert_int_equal(getsockopt(fd, level, name, &value, &n), 0);
    return value;
}

/* A reader whose machine has gone says so to nobody: the kernel asks for it, and its place is free
 * half a minute later. */
static void readers_that_vanish_are_asked_for(void **state)
{
    (void)state;
    enum { LOOKS = WAIT_MS / 10 };
    uint16_t port = find_port();
    stage s = open_port_stage(port, NULL);
    int fd = connect_silently(port, false), other = -1;
    for (int i = 0; i < LOOKS; i++) { /* options are set once it is accepted */
        other = find_other_end(fd);
        if (other >= 0 && tcp_option(other, IPPROTO_TCP, TCP_KEEPINTVL) == 10) break;
        poll(NULL, 0, 10);
    }
    assert_true(other >= 0);
    assert_int_equal(tcp_option(other, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(tcp_option(other, IPPROTO_TCP, TCP_KEEPIDLE), 30);
    assert_int_equal(tcp_option(other, IPPROTO_TCP, TCP_KEEPINTVL), 10);
    assert_int_equal(tcp_option(other, IPPROTO_TCP, TCP_KEEPCNT), 3);
    close(fd);
    close_port_stage(&s);
}

/* Takes all places again, which the log does not tell a second time within ten seconds. */
static void fill_again(uint16_t port, int log, int64_t noted_us)
{
    enum { MOST = 512 };
    int fds[MOST], n = 0;
    char line[256];
    do fds[n] = connect_silently(port, true);
    while (is_connected(fds[n++], 300) && n < MOST);
    assert_in_range(n, 2, MOST - 1);
    assert_int_equal(fcntl(log, F_SETFL, O_NONBLOCK), 0);
    ssize_t got = read(log, line, sizeof line);
    if (clock_now_us() - noted_us < 10000000) assert_int_equal(got, -1);
    for (int i = 0; i < n; i++) close(fds[i]);
}

/* When all places are taken, those who connect wait, and those who are connected are served. */
static void readers_beyond_the_bound_wait(void **state)
{
    (void)state;
    enum { PLACES = 64 };
    char topic[8], payload[512], line[256] = {0};
    int fds[PLACES], log[2];
    uint16_t port = find_port();
    rpc_log *to;
    assert_int_equal(pipe(log), 0);
    assert_true(status_ok(rpc_log_create(log[1], false, &to)));
    stage s = open_port_stage(port, to);
    void *reader = open_reader(&s, ZMQ_SUB, s.endpoint);
    int64_t before_us = clock_now_us();
    uint64_t stored = 0, last;
    zmq_pollitem_t item = {.socket = reader, .events = ZMQ_POLLIN};
    do store(&s, ++stored);
    while (zmq_poll(&item, 1, 10) == 0);
    for (int i = 0; i < PLACES - 1; i++) fds[i] = connect_silently(port, false);
    assert_true(read(log[0], line, sizeof line - 1) > 0);
    assert_non_null(strstr(line, "all places of readers are taken"));
    int late = connect_silently(port, true);
    assert_false(is_connected(late, 300));
    store(&s, ++stored);
    do {
        (void)read_part(reader, topic, sizeof topic, true);
        last = read_number(reader);
        (void)read_part(reader, payload, sizeof payload, false);
    } while (last + 1 < stored);
    for (int i = 0; i < PLACES - 1; i++) close(fds[i]);
    assert_true(is_connected(late, WAIT_MS));
    fill_again(port, log[0], before_us);
    close(late);
    zmq_close(reader);
    close_port_stage(&s);
    rpc_log_destroy(to);
    close(log[0]);
    close(log[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations),
        cmocka_unit_test(nothing_is_published_unasked),
        cmocka_unit_test(a_subscriber_follows),
        cmocka_unit_test(missed_messages_come_again),
        cmocka_unit_test(bad_readers_hurt_nobody),
        cmocka_unit_test(readers_beyond_the_bound_wait),
        cmocka_unit_test(readers_that_vanish_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
