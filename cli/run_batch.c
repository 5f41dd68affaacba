/* `octavo run --prompts`: reads lines, keeps as many requests in the engine as it takes, and prints
 * a line for each choice. */
#include "cli/lines.h"
#include "cli/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PROGRESS_TTY_US = 200 * 1000,
    PROGRESS_LOG_US = 5 * 1000 * 1000,
    WAIT_MS = 200, /* longest wait, so that progress is shown */
};

/* The request of one line while it runs. */
typedef struct job {
    engine_stream *stream; // NULL = this place is free
    json_t *id;
    json_t *session; // NULL = none
    uint64_t line;
    uint32_t n, n_ended;
    bool want_logprobs;
    bool failed;         // its error has been printed
    run_choice *choices; // [n]
} job;

typedef struct batch {
    run_session *s;
    line_reader in;
    job *jobs; // [max_requests]
    uint32_t n_running;
    json_t *held; // a line whose session is busy with an earlier one; input waits, too
    bool input_ended;
    bool output_failed;
    bool aborting;
    uint64_t n_done, n_failed, n_given_up; // counts of requests
    int64_t n_total;                       // lines of input, or -1
    strbuf line;
    bool tty;
    int64_t start_us, logged_us;
} batch;

/* ---- output ---------------------------------------------------------------------------------- */

static void put_line(batch *b)
{
    if (b->line.failed || fwrite(b->line.data, 1, b->line.size, stdout) != b->line.size)
        b->output_failed = true;
}

static void refuse_line(batch *b, const json_t *id, const char *message)
{
    strbuf_clear(&b->line);
    run_error_line(&b->line, id, message, b->in.number);
    put_line(b);
    b->n_failed++;
    b->n_done++;
}

static void log_progress(batch *b, bool last)
{
    int64_t now = clock_now_us();
    if (b->s->model.quiet) return;
    if (!last && now - b->logged_us < (b->tty ? PROGRESS_TTY_US : PROGRESS_LOG_US)) return;
    b->logged_us = now;
    engine_stats st = engine_get_stats(b->s->engine);
    double seconds = (double)(now - b->start_us) / 1e6;
    strbuf text = {0};
    if (b->tty) strbuf_puts(&text, "\r\033[K"); /* replaces the last progress line */
    strbuf_printf(&text, "%llu", (unsigned long long)b->n_done);
    if (b->n_total >= 0) strbuf_printf(&text, "/%lld", (long long)b->n_total);
    strbuf_puts(&text, " done");
    if (b->n_failed) strbuf_printf(&text, " (%llu failed)", (unsigned long long)b->n_failed);
    strbuf_printf(&text, ", %.0f prompt + %.0f output tokens/s",
                  (double)st.sched.prompt_tokens / seconds,
                  (double)st.sched.generated_tokens / seconds);
    if (last) strbuf_printf(&text, ", %.1f s", seconds);
    else
        strbuf_printf(&text, ", %u running, %u waiting, %u of %u pages used", st.sched.running,
                      st.sched.waiting, st.sched.pages.used,
                      st.sched.pages.n_pages ? st.sched.pages.n_pages - 1 : 0);
    if (!b->tty || last) strbuf_putc(&text, '\n');
    if (!text.failed) fwrite(text.data, 1, text.size, stderr);
    strbuf_destroy(&text);
}

/* ---- input ----------------------------------------------------------------------------------- */

/* The line's "id", else its number. *ok is false when the id is neither string nor number. */
static json_t *id_of(const json_t *request, uint64_t line, bool *ok)
{
    json_t *id = json_object_get(request, "id");
    *ok = !id || json_is_null(id) || json_is_string(id) || json_is_number(id);
    return id && *ok && !json_is_null(id) ? json_incref(id) : json_integer((json_int_t)line);
}

static status submit_line(batch *b, job *j, const json_t *request, error *err)
{
    static const char *const also[] = {"id", NULL};
    engine_request r;
    status st = run_request_init(b->s, &r, err);
    if (status_ok(st)) st = engine_request_parse(request, "request", also, &r, err);
    if (status_ok(st))
        st = engine_submit(b->s->engine, &r, waiter_notify, b->s->waiter, &j->stream, err);
    j->n = r.n;
    j->want_logprobs = r.logprobs >= 0;
    engine_request_destroy(&r);
    if (!status_ok(st)) return st;
    j->choices = calloc(j->n, sizeof *j->choices);
    if (j->choices) return st;
    engine_stream_release(j->stream);
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static job *free_job(batch *b)
{
    for (uint32_t i = 0; i < b->s->max_requests; i++)
        if (!b->jobs[i].stream) return &b->jobs[i];
    return NULL;
}

static json_t *session_of(const batch *b, const json_t *request)
{
    json_t *session = json_object_get(request, "session");
    if (!session || json_is_null(session)) session = json_object_get(b->s->flags.fields, "session");
    return session;
}

static bool has_turn(const batch *b, const json_t *session)
{
    bool busy = false;
    for (uint32_t i = 0; session && i < b->s->max_requests && !busy; i++)
        busy = b->jobs[i].session && json_equal(b->jobs[i].session, session);
    return busy;
}

/* Takes over the request of a line; st tells whether the line could be read. */
static void start_line(batch *b, json_t *request, status st, error *err)
{
    bool id_ok;
    json_t *id = id_of(request, b->in.number, &id_ok);
    job *slot = free_job(b), j = {.id = id, .line = b->in.number};
    if (status_ok(st) && !id_ok)
        st = error_set(err, STATUS_INVALID, "request: id: must be a string or a number");
    if (status_ok(st)) st = submit_line(b, &j, request, err);
    if (status_ok(st)) {
        j.session = json_incref(session_of(b, request));
        *slot = j;
        b->n_running++;
    } else {
        refuse_line(b, id, err->text);
        json_decref(id);
    }
    json_decref(request);
}

/* Takes one line. Lines of one session are its turns: each waits for the one before it. */
static void take_line(batch *b, const char *text, size_t n)
{
    if (strspn(text, " \t") == n) return; /* a blank line is no request */
    error err = {{0}};
    json_t *request = NULL;
    status st = json_read_text("not JSON", text, n, &request, &err);
    if (status_ok(st) && has_turn(b, session_of(b, request))) b->held = request;
    else start_line(b, request, st, &err);
}

static bool take_held(batch *b)
{
    error err = {{0}};
    json_t *request = b->held;
    if (!request || b->aborting || has_turn(b, session_of(b, request))) return false;
    b->held = NULL;
    start_line(b, request, STATUS_IS_OK, &err);
    return true;
}

/* Fills the engine. False when no line can be taken now. */
static bool read_some(batch *b)
{
    bool read = take_held(b);
    while (!b->input_ended && !b->held && !b->aborting && b->n_running < b->s->max_requests) {
        char *text;
        size_t n;
        line_outcome got = lines_next(&b->in, false, &text, &n);
        if (got == LINE_LATER) break;
        read = true;
        if (got == LINE_READ) {
            take_line(b, text, n);
        } else if (got == LINE_TOO_LONG) {
            json_t *id = json_integer((json_int_t)b->in.number);
            refuse_line(b, id, "the line is longer than 16 MiB");
            json_decref(id);
        } else {
            b->input_ended = true;
            if (got == LINE_END) continue;
            error err;
            lines_failure(&b->in, &err);
            cli_complain(run_name, CLI_FAILED, err.text);
            b->n_failed++;
        }
    }
    return read;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void print_choice(batch *b, job *j, const engine_output *out)
{
    const run_choice *c = &j->choices[out->choice];
    bool failed = c->failed || out->finish == ENGINE_FINISH_ERROR;
    /* A request that failed ends all its choices with the same error, which is printed once. */
    if (failed && j->failed) return;
    engine_prompt prompt = engine_stream_prompt(j->stream);
    strbuf_clear(&b->line);
    if (failed)
        run_error_line(&b->line, j->id, c->failed ? "out of memory" : out->error_text, j->line);
    else run_line(&b->line, j->id, c, out, j->want_logprobs, &prompt, b->s->model.tokenizer);
    put_line(b);
    j->failed |= failed;
}

static void end_choice(batch *b, job *j, const engine_output *out)
{
    bool aborted = out->finish == ENGINE_FINISH_ABORT;
    if (!aborted) print_choice(b, j, out);
    run_choice_destroy(&j->choices[out->choice]);
    if (++j->n_ended < j->n) return;
    b->n_failed += j->failed;
    b->n_done += !aborted;
    b->n_given_up += aborted;
    b->n_running--;
    engine_stream_release(j->stream);
    json_decref(j->id);
    json_decref(j->session);
    free(j->choices);
    *j = (job){0};
}

static bool read_job(batch *b, job *j)
{
    bool read = false;
    engine_output out;
    while (j->stream && engine_stream_read(j->stream, &out)) {
        read = true;
        run_choice_take(&j->choices[out.choice], &out, b->s->model.tokenizer, j->want_logprobs);
        if (out.finish != ENGINE_FINISH_NONE) end_choice(b, j, &out);
    }
    return read;
}

static void give_up(batch *b)
{
    if (b->aborting) return;
    b->aborting = true;
    for (uint32_t i = 0; i < b->s->max_requests; i++)
        if (b->jobs[i].stream) engine_stream_abort(b->jobs[i].stream);
}

static void run_all(batch *b)
{
    for (;;) {
        bool busy = read_some(b);
        for (uint32_t i = 0; i < b->s->max_requests; i++) busy |= read_job(b, &b->jobs[i]);
        if (fflush(stdout) != 0) b->output_failed = true;
        if (waiter_interrupted(b->s->waiter) || b->output_failed) give_up(b);
        bool more = (!b->input_ended || b->held) && !b->aborting;
        if (!more && b->n_running == 0) return;
        log_progress(b, false);
        bool wants_input = more && !b->held && b->n_running < b->s->max_requests;
        if (!busy) waiter_wait(b->s->waiter, wants_input ? b->in.fd : -1, WAIT_MS);
    }
}

int run_batch(run_session *s)
{
    batch b = {.s = s, .tty = isatty(STDERR_FILENO), .start_us = clock_now_us()};
    error err = {{0}};
    if (!status_ok(lines_open(&b.in, s->flags.prompts, &err)))
        return cli_complain(run_name, CLI_FAILED, err.text);
    b.n_total = lines_count(&b.in);
    b.logged_us = b.start_us;
    b.jobs = calloc(s->max_requests, sizeof *b.jobs);
    if (!b.jobs) {
        lines_close(&b.in);
        return cli_complain(run_name, CLI_FAILED, "out of memory");
    }
    waiter_arm(s->waiter, true);
    run_all(&b);
    log_progress(&b, true);
    bool interrupted = waiter_interrupted(s->waiter);
    if (interrupted)
        fprintf(stderr, "%s: interrupted: %llu requests answered, %llu given up\n", run_name,
                (unsigned long long)b.n_done, (unsigned long long)b.n_given_up);
    lines_close(&b.in);
    strbuf_destroy(&b.line);
    json_decref(b.held);
    free(b.jobs);
    bool written = cli_finish_output(run_name) && !b.output_failed;
    return interrupted ? CLI_INTERRUPTED : b.n_failed || !written ? CLI_FAILED : CLI_OK;
}
