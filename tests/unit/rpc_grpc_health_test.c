/* Health and reflection, as their clients use them. */
#include "rpc/grpc/internal.h"
#include "tests/unit/rpc_grpc_fixture.h"

#include <unistd.h>

typedef Grpc__Reflection__V1__ServerReflectionRequest question;
typedef Grpc__Reflection__V1__ServerReflectionResponse answer;
#define ASKED(x)   GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##x
#define ANSWERS(x) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##x

static void never(rpc_call *c, const ProtobufCMessage *m)
{
    (void)m;
    call_finish(c, GRPC_STATUS_OK, "");
}
static const rpc_method method = {
    .path = "/octavo.v1.Inference/Generate", .input = TEXT_INPUT, .message = never};
static const rpc_service served = {"octavo.v1.Inference", &method, 1};
static const rpc_service *const services[] = {&served};

static int setup(void **state)
{
    *state = fixture_make(NULL, 0);
    fixture_start(*state, services, 1);
    return 0;
}

static int setup_keys(void **state)
{
    static const char *const keys[] = {"secret"};
    *state = fixture_make(keys, 1);
    fixture_start(*state, services, 1);
    return 0;
}

/* Requests may take memory for one byte of a message. */
static int setup_full(void **state)
{
    fixture *f = *state = fixture_make(NULL, 0);
    f->core->service.o.body_memory_bytes = RPC_BODY_FACTOR;
    fixture_start(f, services, 1);
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    return 0;
}

/* ---- health ---------------------------------------------------------------------------------- */

/* The next status that a call reports, or -1 at its end. */
static int next_status(client_call *k)
{
    strbuf in = {0};
    int reported = -1;
    if (client_read(k, &in)) {
        Grpc__Health__V1__HealthCheckResponse *r =
            grpc__health__v1__health_check_response__unpack(NULL, in.size, (uint8_t *)in.data);
        assert_non_null(r);
        reported = (int)r->status;
        grpc__health__v1__health_check_response__free_unpacked(r, NULL);
    }
    strbuf_destroy(&in);
    return reported;
}

static client_call *ask_health(fixture *f, const char *what, const char *name)
{
    text_message m = text_of(name, strlen(name));
    return client_ask(&f->client, what, NULL, &m.base);
}

static void check(fixture *f, const char *name, int want, grpc_status_code code)
{
    client_call *k = ask_health(f, "/grpc.health.v1.Health/Check", name);
    assert_int_equal(next_status(k), want);
    assert_int_equal(client_end(k), code);
    client_destroy(k);
}

static int n_open(fixture *f)
{
    open_calls *o = &f->front->open;
    int n = 0;
    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < OPEN_BUCKETS; i++)
        for (const rpc_call *c = o->first[i]; c; c = c->next_open) n++;
    pthread_mutex_unlock(&o->lock);
    return n;
}

static void eventually_open(fixture *f, int n)
{
    for (int ms = 0; n_open(f) != n; ms++) {
        if (ms == 60000) fail_msg("%d calls are open instead of %d", n_open(f), n);
        nap_ms(1);
    }
}

enum { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };

static void test_check(void **state)
{
    fixture *f = *state;
    check(f, "", SERVING, GRPC_STATUS_OK);
    check(f, "octavo.v1.Inference", SERVING, GRPC_STATUS_OK);
    check(f, "grpc.health.v1.Health", SERVING, GRPC_STATUS_OK);
    check(f, "octavo.v1.Inferenc", -1, GRPC_STATUS_NOT_FOUND);
    service_drain(&f->core->service);
    check(f, "", NOT_SERVING, GRPC_STATUS_OK);
    check(f, "octavo.v1.Inference", NOT_SERVING, GRPC_STATUS_OK);
}

static void test_watch(void **state)
{
    fixture *f = *state;
    client_call *whole = ask_health(f, "/grpc.health.v1.Health/Watch", "");
    client_call *one = ask_health(f, "/grpc.health.v1.Health/Watch", "octavo.v1.Inference");
    client_call *none = ask_health(f, "/grpc.health.v1.Health/Watch", "nobody");
    assert_int_equal(next_status(whole), SERVING);
    assert_int_equal(next_status(one), SERVING);
    assert_int_equal(next_status(none), SERVICE_UNKNOWN);
    listeners_notify(&f->core->service.state_listeners); // nothing has changed: nothing is sent
    service_drain(&f->core->service);
    assert_int_equal(next_status(whole), NOT_SERVING);
    assert_int_equal(next_status(one), NOT_SERVING);
    client_destroy(one);
    client_destroy(none);
    grpc_front_destroy(f->front);
    f->front = NULL;
    assert_int_equal(next_status(whole), -1);
    assert_int_equal(client_end(whole), GRPC_STATUS_UNAVAILABLE);
    client_destroy(whole);
    assert_null(f->core->service.state_listeners.first);
}

/* A client without a key can neither take the memory of requests with its questions, nor is it
 * refused when others have taken it. */
static void test_no_memory_is_taken(void **state)
{
    fixture *f = *state;
    char name[8192];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    check(f, name, -1, GRPC_STATUS_RESOURCE_EXHAUSTED);
    client_call *watching = ask_health(f, "/grpc.health.v1.Health/Watch", "octavo.v1.Inference");
    assert_int_equal(next_status(watching), SERVING);
    assert_int_equal(atomic_load(&f->core->service.body_bytes), 0);
    check(f, "octavo.v1.Inference", SERVING, GRPC_STATUS_OK);
    client_destroy(watching);
}

/* A connection has only so many calls that need no key, whatever becomes of them, and other
 * connections have theirs. */
static void test_calls_of_one_connection_are_bounded(void **state)
{
    fixture *f = *state;
    enum { MOST = 16 };
    client_call *k[MOST], *more;
    grpc_client other = grpc_client_plain(grpc_front_port(f->front));
    text_message m = TEXT_INIT;
    for (int i = 0; i < MOST; i++) {
        /* Every fourth call sends no message, and the server waits for it. */
        k[i] = i % 4 ? ask_health(f, "/grpc.health.v1.Health/Watch", i % 2 ? "" : "nobody")
                     : client_start(&f->client, "/grpc.health.v1.Health/Check", NULL, 0);
        if (i % 4) assert_int_equal(next_status(k[i]), i % 2 ? SERVING : SERVICE_UNKNOWN);
    }
    eventually_open(f, MOST);
    for (int i = 0; i < 3; i++) {
        more =
            ask_health(f, i ? "/grpc.health.v1.Health/Watch" : "/grpc.health.v1.Health/Check", "");
        assert_int_equal(next_status(more), -1);
        assert_int_equal(client_end(more), GRPC_STATUS_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(more->text, "without a key"));
        client_destroy(more);
    }
    more = client_ask(&other, "/grpc.health.v1.Health/Watch", NULL, &m.base);
    assert_int_equal(next_status(more), SERVING);
    client_destroy(more);
    grpc_client_destroy(&other);
    /* A call that ends makes room, be it one in the middle, the first or the last. */
    static const int ends[] = {7, 0, MOST - 1};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        client_destroy(k[ends[i]]);
        eventually_open(f, MOST - 1);
        k[ends[i]] = ask_health(f, "/grpc.health.v1.Health/Watch", "");
        assert_int_equal(next_status(k[ends[i]]), SERVING);
    }
    for (int i = 0; i < MOST; i++) client_destroy(k[i]);
    eventually_open(f, 0);
    check(f, "", SERVING, GRPC_STATUS_OK);
}

/* gRPC tells no clients of a socket in the file system apart. */
static void test_clients_of_a_path_have_no_bound_together(void **state)
{
    enum { EACH = 9 };
    char address[64];
    snprintf(address, sizeof address, "unix:octavo-health-%d.sock", (int)getpid());
    (void)state;
    fixture *f = fixture_make(NULL, 0);
    f->core->service.o.grpc_address = address;
    fixture_start(f, services, 1);
    grpc_client clients[] = {grpc_client_of(address), grpc_client_of(address)};
    client_call *k[2 * EACH];
    text_message m = TEXT_INIT;
    for (int i = 0; i < 2 * EACH; i++) {
        k[i] = client_ask(&clients[i % 2], "/grpc.health.v1.Health/Watch", NULL, &m.base);
        assert_int_equal(next_status(k[i]), SERVING);
    }
    for (int i = 0; i < 2 * EACH; i++) client_destroy(k[i]);
    for (int i = 0; i < 2; i++) grpc_client_destroy(&clients[i]);
    fixture_destroy(f);
    unlink(address + sizeof "unix:" - 1);
}

/* ---- reflection ------------------------------------------------------------------------------ */

static answer *ask(client_call *k, const question *q)
{
    strbuf in = {0};
    assert_true(client_write(k, &q->base));
    assert_true(client_read(k, &in));
    answer *a =
        grpc__reflection__v1__server_reflection_response__unpack(NULL, in.size, (uint8_t *)in.data);
    assert_non_null(a);
    assert_non_null(a->original_request);
    assert_int_equal(a->original_request->message_request_case, q->message_request_case);
    strbuf_destroy(&in);
    return a;
}

static void drop(answer *a)
{
    grpc__reflection__v1__server_reflection_response__free_unpacked(a, NULL);
}

/* A question of a kind (one of ASKED). */
static question question_of(int kind)
{
    question q;
    grpc__reflection__v1__server_reflection_request__init(&q);
    q.message_request_case = kind;
    return q;
}

static question symbol_question(const char *symbol)
{
    question q = question_of(ASKED(FILE_CONTAINING_SYMBOL));
    q.file_containing_symbol = call_bytes(symbol, strlen(symbol));
    return q;
}

static void converse(fixture *f, const char *path)
{
    client_call *k = client_start(&f->client, path, NULL, 0);
    question q = question_of(ASKED(LIST_SERVICES));
    q.host = call_bytes("me", 2);
    answer *a = ask(k, &q);
    assert_int_equal(a->message_response_case, ANSWERS(LIST_SERVICES_RESPONSE));
    assert_int_equal(a->list_services_response->n_service, 4);
    assert_memory_equal(a->list_services_response->service[0]->name.data, "octavo.v1.Inference",
                        19);
    assert_int_equal(a->valid_host.len, 2);
    drop(a);

    q = symbol_question("octavo.v1.Inference.Generate");
    a = ask(k, &q);
    assert_int_equal(a->message_response_case, ANSWERS(FILE_DESCRIPTOR_RESPONSE));
    assert_int_equal(a->file_descriptor_response->n_file_descriptor_proto, 1);
    static const char name[] = "\x0a\x0coctavo.proto"; // the first field of a FileDescriptorProto
    ProtobufCBinaryData file = a->file_descriptor_response->file_descriptor_proto[0];
    assert_true(file.len > sizeof name);
    assert_memory_equal(file.data, name, sizeof name - 1);
    drop(a);

    q = question_of(ASKED(FILE_BY_FILENAME));
    q.file_by_filename = call_bytes("health.proto", 12);
    a = ask(k, &q);
    assert_int_equal(a->message_response_case, ANSWERS(FILE_DESCRIPTOR_RESPONSE));
    drop(a);

    q = symbol_question("octavo.v1.Nothing");
    a = ask(k, &q);
    assert_int_equal(a->message_response_case, ANSWERS(ERROR_RESPONSE));
    assert_int_equal(a->error_response->error_code, GRPC_STATUS_NOT_FOUND);
    drop(a);

    q = question_of(ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE));
    q.all_extension_numbers_of_type = call_bytes("x", 1);
    a = ask(k, &q);
    assert_int_equal(a->error_response->error_code, GRPC_STATUS_NOT_FOUND);
    drop(a);

    q = question_of(0);
    a = ask(k, &q);
    assert_int_equal(a->error_response->error_code, GRPC_STATUS_INVALID_ARGUMENT);
    drop(a);
    client_half_close(k);
    assert_int_equal(client_end(k), GRPC_STATUS_OK);
    client_destroy(k);
}

static void test_reflection(void **state)
{
    converse(*state, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    converse(*state, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
}

static void test_reflection_too_long(void **state)
{
    fixture *f = *state;
    static char name[5000];
    memset(name, 'a', sizeof name - 1);
    question q = symbol_question(name);
    client_call *k = client_start(
        &f->client, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", NULL, 0);
    client_write(k, &q.base);
    assert_int_equal(client_end(k), GRPC_STATUS_INVALID_ARGUMENT);
    client_destroy(k);
}

/* Health is open, reflection is not. */
static void test_keys(void **state)
{
    fixture *f = *state;
    check(f, "", SERVING, GRPC_STATUS_OK);
    client_call *k = client_start(
        &f->client, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", NULL, 0);
    assert_int_equal(client_end(k), GRPC_STATUS_UNAUTHENTICATED);
    client_destroy(k);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(check),
        TEST(watch),
        TEST(calls_of_one_connection_are_bounded),
        cmocka_unit_test(test_clients_of_a_path_have_no_bound_together),
        TEST(reflection),
        TEST(reflection_too_long),
        cmocka_unit_test_setup_teardown(test_no_memory_is_taken, setup_full, teardown),
        cmocka_unit_test_setup_teardown(test_keys, setup_keys, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
