/* The libmicrohttpd daemon with octavo's socket, limits and callbacks. */
#include "rpc/http/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    END_PATIENCE_US = 5000000, // for aborted requests to tell their clients, on a busy machine too
};

/* ---- connections ----------------------------------------------------------------------------- */

static uint32_t most_connections(const rpc_options *o)
{
    uint32_t half = (o->max_connections + 1) / 2;
    return o->max_connections + (half < RPC_SURPLUS_CONNECTIONS ? half : RPC_SURPLUS_CONNECTIONS);
}

static enum MHD_Result accept_connection(void *cls, const struct sockaddr *address, socklen_t n)
{
    http_server *h = cls;
    (void)address;
    (void)n;
    return atomic_load(&h->closing) ? MHD_NO : MHD_YES;
}

/* The worker that is this thread. */
static http_worker *find_worker(http_server *h)
{
    http_worker *w = h->workers;
    pthread_mutex_lock(&h->workers_lock);
    while (w->is_known && !pthread_equal(w->thread, pthread_self())) {
        w++;
        assert(w < h->workers + HTTP_THREADS);
    }
    w->thread = pthread_self();
    w->is_known = true;
    pthread_mutex_unlock(&h->workers_lock);
    return w;
}

static void connection_opened(http_server *h, struct MHD_Connection *mhd, void **state)
{
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    http_connection *c = watch_opened(&h->watch, fd->connect_fd);
    *state = c;
    if (!c) return; // its requests are answered by no_memory
    c->worker = find_worker(h);
    if (!h->tls.client_ca) return;
    const union MHD_ConnectionInfo *session =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    tls_require_client(c, session->tls_session);
}

static void connection_changed(void *cls, struct MHD_Connection *mhd, void **state,
                               enum MHD_ConnectionNotificationCode what)
{
    http_server *h = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        connection_opened(h, mhd, state);
        return;
    }
    if (!*state) return;
    exchange_end_with(*state);
    watch_closed(&h->watch, *state);
}

/* Keeps libmicrohttpd from unescaping paths: exchange.c does it after it has checked them. */
static size_t leave_escapes(void *cls, struct MHD_Connection *mhd, char *s)
{
    (void)cls;
    (void)mhd;
    return strlen(s);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* libmicrohttpd's own timeout, above watch.c's limits: it ends answers that are sent whole and not
 * read. */
static unsigned timeout_s(const rpc_options *o)
{
    int64_t us = o->stall_timeout_us > o->keepalive_timeout_us ? o->stall_timeout_us
                                                               : o->keepalive_timeout_us;
    return (unsigned)(us / 1000000 + 1);
}

enum { TLS_OPTIONS = 5 };

/* Lists the options for TLS. The list ends with MHD_OPTION_END, which is 0. */
static void list_tls(const http_tls *t, char *priorities, struct MHD_OptionItem *out)
{
    memset(out, 0, TLS_OPTIONS * sizeof *out);
    if (!t->cert) return;
    *out++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, t->cert};
    *out++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, t->key};
    *out++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, priorities};
    if (t->client_ca) *out = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0, t->client_ca};
}

/* Makes the answer that is sent when memory is out. It is made at the start, since there is no
 * memory for it later. */
static struct MHD_Response *make_no_memory(void)
{
    const char body[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
                        "\"ServiceUnavailableError\",\"param\":null,\"code\":503}}";
    struct MHD_Response *r = MHD_create_response_from_buffer(
        sizeof body - 1, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    if (!r) return NULL;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
    MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    return r;
}

static status start_daemon(http_server *h, error *err)
{
    const rpc_options *o = &h->service->o;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (h->tls.cert) flags |= MHD_USE_TLS;
    char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
    struct MHD_OptionItem tls[TLS_OPTIONS];
    list_tls(&h->tls, priorities, tls);
    /* libmicrohttpd closes the socket it is given, but not after every failure: it gets a copy. */
    int fd = fcntl(h->listen_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return error_set(err, STATUS_IO, "http: %s", strerror(errno));
    bool changed = thread_set_patient(true); // libmicrohttpd's threads inherit it
    h->daemon = MHD_start_daemon(
        flags, h->port, accept_connection, h, exchange_handle, h, MHD_OPTION_EXTERNAL_LOGGER,
        exchange_library_says, h, /* first, or libmicrohttpd writes to stderr */
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS,
        MHD_OPTION_CONNECTION_LIMIT, most_connections(o), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HTTP_CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, timeout_s(o),
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes, NULL,
        MHD_OPTION_URI_LOG_CALLBACK, exchange_begin, h, MHD_OPTION_NOTIFY_COMPLETED,
        exchange_completed, h, MHD_OPTION_NOTIFY_CONNECTION, connection_changed, h,
        MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (changed) thread_set_patient(false);
    return h->daemon ? STATUS_IS_OK : error_set(err, STATUS_IO, "http: cannot start");
}

static status start_http(http_server *h, error *err)
{
    const rpc_options *o = &h->service->o;
    RETURN_IF_ERROR(watch_create(&h->watch, h->service, most_connections(o), err));
    RETURN_IF_ERROR(tls_load(o, &h->tls, err));
    h->no_memory = make_no_memory();
    if (!h->no_memory) return error_set(err, STATUS_NO_MEMORY, "http: out of memory");
    status s = work_pool_create(&h->work, err);
    if (!status_ok(s)) error_prefix(err, "http");
    RETURN_IF_ERROR(s);
    RETURN_IF_ERROR(http_listen(o->http_address, &h->listen_fd, &h->port, err));
    return start_daemon(h, err);
}

status http_server_check(const rpc_options *o, int *fd, error *err)
{
    http_tls tls;
    uint16_t port;
    *fd = -1;
    RETURN_IF_ERROR(openai_check_parsers(o, err));
    RETURN_IF_ERROR(cors_check(o, err));
    RETURN_IF_ERROR(tls_load(o, &tls, err));
    tls_destroy(&tls);
    if (!o->http_address) return STATUS_IS_OK; /* the certificates serve gRPC, too */
    return http_listen(o->http_address, fd, &port, err);
}

status http_server_create(service *s, http_server **out, error *err)
{
    http_server *h = calloc(1, sizeof *h);
    if (!h) return error_set(err, STATUS_NO_MEMORY, "http: out of memory");
    h->service = s;
    h->listen_fd = -1;
    pthread_mutex_init(&h->workers_lock, NULL);
    status st = openai_open(s) ? start_http(h, err)
                               : error_set(err, STATUS_NO_MEMORY, "http: out of memory");
    if (!status_ok(st)) {
        http_server_destroy(h);
        return st;
    }
    *out = h;
    return STATUS_IS_OK;
}

uint16_t http_server_port(const http_server *h) { return h->port; }
void http_server_drain(http_server *h) { atomic_store(&h->draining, true); }

void http_server_destroy(http_server *h)
{
    if (!h) return;
    if (h->daemon) {
        /* Refuses new connections without MHD_quiesce_daemon, which in 0.9.75 races with
         * libmicrohttpd's threads and aborts. */
        atomic_store(&h->closing, true);
        watch_end_all(&h->watch, END_PATIENCE_US);
        /* No connection may be suspended when libmicrohttpd stops, so the pool stops first;
         * libmicrohttpd's threads may still call work_pool_put. */
        work_pool_stop(&h->work);
        for (int i = 0; i < HTTP_THREADS; i++) worker_wait(&h->workers[i]);
        MHD_stop_daemon(h->daemon);
    }
    work_pool_destroy(&h->work);
    watch_destroy(&h->watch);
    if (h->no_memory) MHD_destroy_response(h->no_memory);
    if (h->listen_fd >= 0) close(h->listen_fd);
    tls_destroy(&h->tls);
    pthread_mutex_destroy(&h->workers_lock);
    openai_close(h->service);
    free(h);
}
