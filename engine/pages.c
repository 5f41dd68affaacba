/* Maps of requests' pages, for people to look at (docs/serving.md).
 *
 * A map costs nothing until somebody asks for it. Who asks gets the last map at once and has the
 * engine thread draw another one, between two steps and while the backend computes. All who ask
 * within MAP_EVERY_US get the same map. Drawing takes at most one part in MAP_SHARE of the engine
 * thread's time, however many requests are looked at and however large they are: after a map the
 * next one waits for that many times as long as the thread computed for it. Time in which the
 * thread had no core does not count: on a busy machine that would keep maps away for minutes.
 *
 * Who has a map drawn also has the attention of one of the request's next rows measured, for the
 * maps after this one (sched_watch). */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAP_EVERY_US = 200000, MAP_SHARE = 100 };

/* ---- as JSON --------------------------------------------------------------------------------- */

/* A cell's letter: '.' = nothing is kept, 'a' to 'h' = that many eighths, capital where shared. */
static char letter_of(uint8_t cell)
{
    uint8_t eighths = cell & (PKV_MAP_SHARED - 1);
    if (eighths == 0) return '.';
    return (char)((cell & PKV_MAP_SHARED ? 'A' : 'a') + eighths - 1);
}

/* Runs of equal cells: the letter, after their number where that is above 1. */
static void put_cells(const uint8_t *cells, uint32_t n, strbuf *out)
{
    for (uint32_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && cells[i + run] == cells[i];) run++;
        if (run > 1) strbuf_printf(out, "%u", run);
        strbuf_putc(out, letter_of(cells[i]));
    }
}

/* Rows that are equal and follow one another are one: [how many, their cells]. */
static void put_rows(const pkv_map *m, strbuf *out)
{
    const uint8_t *cells = m->cells;
    for (uint32_t i = 0, same; i < m->n_rows; i += same, cells += (size_t)same * m->n_columns) {
        same = 1;
        while (i + same < m->n_rows &&
               memcmp(cells, cells + (size_t)same * m->n_columns, m->n_columns) == 0)
            same++;
        strbuf_printf(out, "%s[%u,\"", i ? "," : "", same);
        put_cells(cells, m->n_columns, out);
        strbuf_puts(out, "\"]");
    }
}

/* A level's letter: '.' = not read, then the printable characters that JSON does not escape. */
static const char levels[] =
    ".!#$%&'()*+,-/0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~";
_Static_assert(sizeof levels == PKV_MASS_LEVELS + 2, "a letter for each level and for none");

static void put_levels(const uint8_t *cells, uint32_t n, strbuf *out)
{
    char text[PKV_MAP_COLUMNS_MOST];
    for (uint32_t i = 0; i < n; i++) text[i] = levels[cells[i]];
    strbuf_append(out, text, n);
}

static void put_lack(const engine *e, const char *what, strbuf *out)
{
    strbuf text = {0};
    strbuf_printf(&text, "the %s backend does not measure %s", e->info.name, what);
    strbuf_puts(out, ",\"attention_lacks\":");
    strbuf_json_string(out, text.data ? text.data : "", text.size);
    strbuf_destroy(&text);
}

/* Where the last measured row's attention went. Rows of the map that were not measured are null. */
static void put_attention(const engine *e, const sched_sight *sight, strbuf *out)
{
    const pkv_mass_map *a = sight->attention;
    if (!a || sight->unmeasured) {
        strbuf_puts(out, ",\"attention\":null");
        if (sight->unmeasured) put_lack(e, sight->unmeasured, out);
        return;
    }
    strbuf_printf(out,
                  ",\"attention\":{\"token\":%u,\"layers\":%u,\"column_tokens\":%u,\"columns\":%u,"
                  "\"rows\":[",
                  sight->attention_at, a->layers, a->column_tokens, a->n_columns);
    for (uint32_t i = 0; i < a->n_rows; i++) {
        if (i) strbuf_putc(out, ',');
        if (a->read[i] < 0) {
            strbuf_puts(out, "null");
            continue;
        }
        strbuf_printf(out, "[%.1f,\"", (double)a->read[i]);
        put_levels(a->levels + (size_t)i * a->n_columns, a->n_columns, out);
        strbuf_puts(out, "\"]");
    }
    strbuf_puts(out, "]}");
}

static void put_map(const engine *e, const sched_sight *sight, strbuf *out)
{
    const pkv_geometry *g = &e->info.geometry;
    const pkv_map *m = e->map;
    strbuf_printf(out,
                  ",\"layers\":%u,\"kv_heads\":%u,\"page_tokens\":%u,\"tables\":%u,"
                  "\"tables_seen\":%u,\"row_layers\":%u,\"column_tokens\":%u,\"columns\":%u,"
                  "\"first_token\":%u,\"rows\":[",
                  g->n_layers, g->n_kv_heads, g->page_tokens, m->tables, m->tables_seen,
                  m->row_layers, m->column_tokens, m->n_columns, sight->cut);
    put_rows(m, out);
    strbuf_putc(out, ']');
}

static void put_sight(const engine *e, const sched_sight *sight, strbuf *out)
{
    strbuf_printf(out,
                  "{\"state\":\"%s\",\"method\":\"%s\",\"choice\":%u,\"choices\":%u,"
                  "\"prompt_tokens\":%u,\"output_tokens\":%u,\"kept_tokens\":%.1f,"
                  "\"pages_dropped\":%llu",
                  sight->running   ? "running"
                  : sight->swapped ? "swapped"
                                   : "waiting",
                  sight->method, sight->choice, sight->n_choices, sight->prompt_tokens,
                  sight->output_tokens, sight->kept_tokens,
                  (unsigned long long)sight->pages_dropped);
    if (sight->running) {
        put_map(e, sight, out);
        put_attention(e, sight, out);
    }
    if (sight->reading) {
        strbuf_puts(out, ",\"reading\":");
        retrieval_report_json(sight->reading, out);
    }
    strbuf_putc(out, '}');
}

/* ---- who asks: any thread -------------------------------------------------------------------- */

bool engine_stream_pages(engine_stream *s, strbuf *out, int64_t *taken_us)
{
    int64_t now = clock_now_us();
    pthread_mutex_lock(&s->lock);
    bool has = s->map.size > 0;
    bool asks = !s->map_wanted && (!has || now - s->map_asked_us >= MAP_EVERY_US);
    if (asks) s->map_asked_us = now;
    s->map_wanted |= asks;
    *taken_us = s->map_us;
    if (has) strbuf_append(out, s->map.data, s->map.size);
    pthread_mutex_unlock(&s->lock);
    if (asks) inbox_put_look(s->engine, s);
    return has;
}

/* ---- the engine thread ----------------------------------------------------------------------- */

static engine_stream *take_first(engine *e)
{
    engine_stream *s = e->looks.first;
    e->looks.first = s->look_next;
    if (!e->looks.first) e->looks.last = NULL;
    return s;
}

void pages_want(engine *e, const stream_list *looks)
{
    if (!looks->first) return;
    if (e->looks.last) e->looks.last->look_next = looks->first;
    else e->looks.first = looks->first;
    e->looks.last = looks->last;
}

/* The state of a stream that the scheduler does not know: it is prepared, or has ended, perhaps
 * before it was prepared. */
static const char *state_of(engine_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool ended = s->ends && s->ends[0].finish != ENGINE_FINISH_NONE;
    pthread_mutex_unlock(&s->lock);
    return ended || s->id ? "ended" : "preparing";
}

/* A map for which memory is out is not there: who asks again has it tried again. */
static void draw_map(engine *e, engine_stream *s)
{
    strbuf json = {0}, before;
    sched_sight sight;
    if (!e->map) e->map = malloc(sizeof *e->map);
    bool known = s->id != 0 && slots_find(e, s->id) == s;
    if (known && e->map && sched_draw_map(e->sched, s->id, &sight, e->map)) {
        put_sight(e, &sight, &json);
        sched_watch(e->sched, s->id);
    } else if (e->map) {
        strbuf_printf(&json, "{\"state\":\"%s\"}", state_of(s));
    }
    if (json.failed) strbuf_destroy(&json);
    pthread_mutex_lock(&s->lock);
    before = s->map;
    s->map = json;
    s->map_us = clock_now_us();
    s->map_wanted = false;
    pthread_mutex_unlock(&s->lock);
    strbuf_destroy(&before);
}

void pages_draw(engine *e)
{
    if (!e->looks.first) return;
    int64_t start = clock_now_us();
    if (start < e->draw_us) return;
    int64_t computed_ns = clock_thread_ns();
    engine_stream *s = take_first(e);
    draw_map(e, s);
    stream_unref(s);
    computed_ns = clock_thread_ns() - computed_ns;
    e->draw_us = start + MAP_SHARE * computed_ns / 1000;
}

int64_t pages_wait(const engine *e, int64_t wait_us)
{
    if (!e->looks.first) return wait_us;
    int64_t left = e->draw_us - clock_now_us();
    if (left < 0) left = 0;
    return wait_us < 0 || left < wait_us ? left : wait_us;
}

void pages_drop(engine *e)
{
    while (e->looks.first) stream_unref(take_first(e));
}
