/* Counts answers by route and code, and logs a line for each refusal up to LINES_MAX a second of
 * each sender. */
#include "rpc/service.h"

#include <stdlib.h>
#include <string.h>

/* Lines a second. A client that floods the server with bad requests must not flood the log. */
enum { LINES_MAX = 10 };

bool answers_init(answer_counts *a, uint32_t n_keys)
{
    a->n_senders = n_keys + 1;
    a->lines_left = malloc(a->n_senders);
    if (!a->lines_left) return false;
    memset(a->lines_left, LINES_MAX, a->n_senders);
    pthread_mutex_init(&a->lock, NULL);
    return true;
}

void answers_destroy(answer_counts *a)
{
    free(a->lines_left);
    pthread_mutex_destroy(&a->lock);
}

/* The row of this route and code, added if it is new. NULL when the table is full. Call it with the
 * lock held. */
static answer_count *find_count(answer_counts *a, const service_answer *what)
{
    for (size_t i = 0; i < a->n_rows; i++) {
        answer_count *row = &a->rows[i];
        if (strcmp(row->route, what->route) == 0 && strcmp(row->code, what->code) == 0 &&
            strcmp(row->surface, what->surface) == 0)
            return row;
    }
    if (a->n_rows == ANSWER_ROWS_MAX) return NULL;
    answer_count *row = &a->rows[a->n_rows++];
    *row = (answer_count){.surface = what->surface, .route = what->route, .of_api = what->of_api};
    snprintf(row->code, sizeof row->code, "%s", what->code);
    return row;
}

/* Writes the line of a refusal. A message that may hold bytes of the client is as private as a
 * prompt, and is left out unless the log shows prompts. */
static void write_line(service *s, const service_answer *what)
{
    strbuf line = {0};
    bool shown = what->message && (what->is_own_message || rpc_log_shows_prompts(s->o.log));
    rpc_log_begin(&line, "warning", "refusal");
    strbuf_printf(&line, ",\"surface\":\"%s\",\"route\":\"%s\",\"code\":\"%s\"", what->surface,
                  what->route, what->code);
    if (what->id) rpc_log_text(&line, "id", what->id, strlen(what->id));
    if (shown) rpc_log_text(&line, "message", what->message, strlen(what->message));
    rpc_log_end(s->o.log, &line);
}

void service_count_answer(service *s, const service_answer *what)
{
    answer_counts *a = &s->answers;
    bool tells = what->is_refusal && s->o.log;
    pthread_mutex_lock(&a->lock);
    answer_count *row = find_count(a, what);
    if (row) row->n++;
    uint8_t *left = &a->lines_left[what->key];
    if (tells && *left == 0) {
        a->lines_skipped++;
        tells = false;
    }
    if (tells) --*left;
    pthread_mutex_unlock(&a->lock);
    if (tells) write_line(s, what);
}

void service_time_answer(service *s, const service_answer *what, double seconds)
{
    answer_counts *a = &s->answers;
    pthread_mutex_lock(&a->lock);
    answer_count *row = find_count(a, what);
    if (row) {
        row->n_timed++;
        row->seconds += seconds;
    }
    pthread_mutex_unlock(&a->lock);
}

void answers_tick(service *s)
{
    answer_counts *a = &s->answers;
    pthread_mutex_lock(&a->lock);
    uint64_t skipped = a->lines_skipped;
    a->lines_skipped = 0;
    memset(a->lines_left, LINES_MAX, a->n_senders);
    pthread_mutex_unlock(&a->lock);
    if (skipped == 0 || !s->o.log) return;
    strbuf line = {0};
    rpc_log_begin(&line, "warning", "refusals");
    rpc_log_number(&line, "not_shown", skipped);
    rpc_log_end(s->o.log, &line);
}
