/* The pure parts of HTTP: heads, escapes, addresses. */
#include "rpc/http/head.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A head as libmicrohttpd leaves it in memory: two NULs end each line. */
typedef struct laid_out {
    char bytes[256];
    http_head head;
} laid_out;

static laid_out *lay_out(void)
{
    static const char text[] = "GET\0/x?y\0HTTP/1.1\0\0Host\0 a\0\0Content-Length\0\t5\0\0\0";
    laid_out *l = calloc(1, sizeof *l);
    memcpy(l->bytes, text, sizeof text);
    const char *b = l->bytes;
    l->head = (http_head){.method = b,
                          .target = b + 4,
                          .target_bytes = 4,
                          .target_ok = true,
                          .version = b + 9,
                          .n_fields = 2,
                          .fields = {{b + 19, b + 25, 4, 1}, {b + 28, b + 44, 14, 1}},
                          .bytes = 49};
    return l;
}

static void a_plain_head_is_plain(void **state)
{
    (void)state;
    http_framing framing;
    laid_out *l = lay_out();
    assert_true(head_is_plain(&l->head));
    assert_int_equal(head_check(&l->head, &framing).status, 0);
    assert_true(framing.has_length && framing.length == 5);
    assert_non_null(head_find(&l->head, "HOST"));
    assert_null(head_find(&l->head, "Hos"));
    free(l);
}

static void gaps_are_seen(void **state)
{
    (void)state;
    for (int what = 0; what < 7; what++) {
        laid_out *l = lay_out();
        http_head *h = &l->head;
        if (what == 0) h->bytes++;
        if (what == 1) h->bytes--;
        if (what == 2) h->fields[0].value_bytes = 0;          // a value cut short
        if (what == 3) h->fields[1].name = h->fields[0].name; // a line that was moved
        if (what == 4) h->n_fields = 1;                       // a line that was lost
        if (what == 5) h->target_bytes--;
        if (what == 6) l->bytes[26] = 'x'; // not ended by CRLF
        if (head_is_plain(h)) fail_msg("case %d is not seen", what);
        free(l);
    }
}

static http_field field(const char *name, const char *value)
{
    return (http_field){name, value, strlen(name), strlen(value)};
}

/* A field of which the server reads one value is refused where it comes twice, be the values equal
 * or not, and in whatever case. Lists may be split over several fields. */
static void single_fields_come_once(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second;
        unsigned status;
    } rows[] = {
        {"Host", "host", 400},
        {"Content-Type", "Content-Type", 400},
        {"Content-Encoding", "Content-Encoding", 400},
        {"Origin", "Origin", 400},
        {"Authorization", "authorization", 400},
        {"x-api-key", "X-API-Key", 400},
        {"X-Request-Id", "x-request-id", 400},
        {"octavo-cache-salt", "Octavo-Cache-Salt", 400},
        {"Inference-Header-Content-Length", "inference-header-content-length", 400},
        {"Authorization", "x-api-key", 0},
        {"Accept-Encoding", "Accept-Encoding", 0},
        {"X-Other", "X-Other", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        http_framing framing;
        http_head h = {.method = "GET", .target = "/", .target_ok = true, .version = "HTTP/1.1"};
        h.fields[h.n_fields++] = field(rows[i].first, "1");
        assert_int_equal(head_check(&h, &framing).status, 0);
        h.fields[h.n_fields++] = field("X-Between", "2");
        h.fields[h.n_fields++] = field(rows[i].second, i % 2 ? "1" : "3");
        if (head_check(&h, &framing).status != rows[i].status) fail_msg("row %zu", i);
    }
}

static void escapes(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out; // NULL = refused
    } rows[] = {
        {"/a", "/a"},  {"/%61%2Fb", "/a/b"},   {"%", NULL},        {"a%4", NULL},
        {"%4g", NULL}, {"%00", NULL},          {"%0a", NULL},      {"%7f", NULL},
        {"", ""},      {"1234567", "1234567"}, {"12345678", NULL}, {"%e4", "\xe4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[8];
        bool ok = head_unescape(rows[i].in, strlen(rows[i].in), out, sizeof out);
        if (ok != (rows[i].out != NULL) || (ok && strcmp(out, rows[i].out) != 0))
            fail_msg("%s", rows[i].in);
    }
}

static void addresses(void **state)
{
    (void)state;
    static const struct {
        const char *in, *host; // NULL = refused
        uint16_t port;
    } rows[] = {
        {"127.0.0.1:80", "127.0.0.1", 80},
        {"[::]:8000", "::", 8000},
        {":0", "", 0},
        {"localhost:65535", "localhost", 65535},
        {"[fe80::1]:1", "fe80::1", 1},
        {"localhost:65536", NULL, 0},
        {"localhost", NULL, 0},
        {"::1:80", NULL, 0},
        {"[::1:80", NULL, 0},
        {"[::1]80", NULL, 0},
        {"a:", NULL, 0},
        {"a:+1", NULL, 0},
        {"a:1x", NULL, 0},
        {"[]:1", NULL, 0},
        {"", NULL, 0},
        {"a-host-name-longer-than-the-room:1", NULL, 0},
        {"[[::1]]:1", NULL, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char host[24];
        uint16_t port = 0;
        bool ok = address_split(rows[i].in, host, sizeof host, &port);
        if (ok != (rows[i].host != NULL) ||
            (ok && (strcmp(host, rows[i].host) != 0 || port != rows[i].port)))
            fail_msg("%s", rows[i].in);
    }
}

static void gzip_is_taken_by_its_weight(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second; // fields; NULL = none
        bool takes;
    } rows[] = {
        {NULL, NULL, false},
        {"", NULL, false},
        {"gzip", NULL, true},
        {"x-GZIP", NULL, true},
        {"br, deflate", NULL, false},
        {"br,deflate,\tgzip ,", NULL, true},
        {"*", NULL, true},
        {"*;q=0", NULL, false},
        {"*, gzip;q=0", NULL, false},
        {"*;q=0, gzip", NULL, true},
        {"gzip;q=0", NULL, false},
        {"gzip;q=0.000", NULL, false},
        {"gzip;q=0.001", NULL, true},
        {"gzip ; Q=1.000", NULL, true},
        {"gzip;q=1.", NULL, true},
        {"gzip;q=0.5, identity", NULL, false},
        {"identity;q=0.5, gzip;q=0.4", NULL, false},
        {"identity;q=0.5, gzip;q=0.5", NULL, true},
        {"identity;q=0", NULL, false},
        {"br", "gzip", true},
        {"gzip", "gzip;q=0", false},
        /* Malformed weights. */
        {"gzip;q=1.001", NULL, false},
        {"gzip;q=2", NULL, false},
        {"gzip;q=0.1234", NULL, false},
        {"gzip;q=-1", NULL, false},
        {"gzip;q=", NULL, false},
        {"gzip;q", NULL, false},
        {"gzip;q=0x1", NULL, false},
        {"gzip;q=.5", NULL, false},
        {"gzip;level=9", NULL, false},
        {"gzip;q=1;q=0", NULL, false},
        {"gzip;q=1e9", NULL, false},
        {"gzipped", NULL, false},
        {";;,,;q=1,=;", NULL, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        http_head h = {.n_fields = 0};
        if (rows[i].first) h.fields[h.n_fields++] = field("Accept-Encoding", rows[i].first);
        if (rows[i].second) h.fields[h.n_fields++] = field("Accept-Encoding", rows[i].second);
        if (head_takes_gzip(&h) != rows[i].takes) fail_msg("row %zu", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_head_is_plain),
        cmocka_unit_test(gaps_are_seen),
        cmocka_unit_test(single_fields_come_once),
        cmocka_unit_test(escapes),
        cmocka_unit_test(addresses),
        cmocka_unit_test(gzip_is_taken_by_its_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
