/* Large bodies: threads of a pool run their handlers, so that libmicrohttpd's threads stay free for
 * other clients.
 *
 * A connection with a large body is suspended while its handler runs here and leaves its answer in
 * the exchange. Then the connection is resumed, and its own thread sends the answer. */
#include "rpc/http/internal.h"

/* Runs the handler, unless the server stops or the client has left. */
static void read_body(void *owner, bool wanted)
{
    exchange *e = owner;
    if (wanted && !wake_is_cut(&e->wake)) e->route->handle(&e->x);
    wake_release(&e->wake); /* e belongs to its connection's thread again */
}

void http_work_put(work_pool *w, exchange *e)
{
    e->stage = STAGE_WORKING;
    e->job = (work_job){.run = read_body, .owner = e};
    wake_hold(&e->wake);
    if (!work_pool_put(w, &e->job)) wake_release(&e->wake);
    if (!wake_sleep(&e->wake)) http_work_resumed(e);
}

void http_work_resumed(exchange *e)
{
    http_news news = wake_begin(&e->wake);
    e->stage = STAGE_ANSWERED;
    if (news == NEWS_CUT) e->failed = true;
    else if (e->refusal.status)
        http_reply_error(&e->x, &e->refusal); /* even if a generation has begun */
    else if (e->generation) {
        if (news == NEWS_ABORT) generation_abort(e->generation);
        e->stage = STAGE_WAITING;
        pump_resumed(e);
    } else if (e->reply_code) exchange_send_out(e, e->reply_code, e->reply_type);
    else e->failed = true; /* the server stops */
}
