/* Sums over the tables of all sequences and sessions: their tokens (stats.logical_tokens)
 * and what attention still reads of those (held_kept). The sums change with the tables, so that
 * reading them costs the same whatever runs and waits. They are whole numbers, so they cannot
 * drift. Every change of a table that a sequence has in the pool goes through this file, or through
 * a call of sched_add_kept or sched_remove_kept beside it. */
#include "scheduler/sched_internal.h"

uint64_t sched_token_kept(const sched *s, const sched_seq *q)
{
    const pkv_geometry *g = &s->options.geometry;
    return (uint64_t)pkv_filled_layers(g, q->entry->n_layers) * g->n_kv_heads;
}

double sched_kept_tokens(const sched *s, const sched_seq *q)
{
    return (double)q->kept / (double)sched_token_kept(s, q);
}

void sched_add_kept(sched *s, uint32_t n_tokens, uint64_t kept)
{
    s->stats.logical_tokens += n_tokens;
    s->held_kept += kept;
}

void sched_remove_kept(sched *s, uint32_t n_tokens, uint64_t kept)
{
    s->stats.logical_tokens -= n_tokens;
    s->held_kept -= kept;
}

status sched_append(sched *s, sched_seq *q, uint32_t n)
{
    RETURN_IF_ERROR(pkv_seq_append(s->kv, q->slot, n));
    uint64_t kept = n * sched_token_kept(s, q);
    q->kept += kept;
    sched_add_kept(s, n, kept);
    return STATUS_IS_OK;
}

status sched_cut(sched *s, sched_seq *q, uint32_t n)
{
    RETURN_IF_ERROR(pkv_seq_cut(s->kv, q->slot, n));
    uint64_t kept = n * sched_token_kept(s, q);
    q->kept -= kept;
    sched_remove_kept(s, n, kept);
    return STATUS_IS_OK;
}

void sched_recount(sched *s, sched_seq *q)
{
    uint64_t kept = pkv_seq_kept(s->kv, q->slot);
    s->held_kept -= q->kept - kept;
    q->kept = kept;
}

void sched_close_tables(sched *s, sched_seq *q)
{
    sched_remove_kept(s, pkv_seq_length(s->kv, q->slot), q->kept);
    q->kept = 0;
    pkv_seq_close(s->kv, q->slot);
}

/* ---- integrity ------------------------------------------------------------------------------- */

typedef struct held_sums {
    uint64_t tokens, kept;
    bool agrees; // every sequence and session counts what its tables keep
} held_sums;

static void add_parked(const sched *s, uint32_t parked, uint64_t counted, held_sums *sums)
{
    if (!parked) return;
    uint64_t kept = pkv_parked_kept(s->kv, parked);
    sums->tokens += pkv_parked_length(s->kv, parked);
    sums->kept += kept;
    sums->agrees &= counted == kept;
}

const char *sched_held_check(const sched *s)
{
    held_sums sums = {.agrees = true};
    uint32_t idle = 0, swapped = 0;
    for (uint32_t i = 0; i < s->running.n; i++) {
        const sched_seq *q = s->running.seqs[i];
        uint64_t kept = q->leaving ? q->kept : pkv_seq_kept(s->kv, q->slot);
        sums.tokens += pkv_seq_length(s->kv, q->slot);
        sums.kept += kept;
        sums.agrees &= q->kept == kept;
    }
    for (uint32_t i = 0; i < s->waiting.n; i++) {
        const sched_seq *q = s->waiting.seqs[i];
        add_parked(s, q->parked, q->kept, &sums);
        sums.agrees &= q->parked || q->swap || q->kept == 0;
    }
    for (const sched_session *x = s->idle.oldest; x; x = x->newer) {
        add_parked(s, x->parked, x->kept, &sums);
        idle += x->parked != 0;
        swapped += x->swap != 0;
    }
    sched_exports_count(s, &sums.tokens, &sums.kept);
    if (!sums.agrees) return "a sequence or session miscounts what its tables keep";
    if (sums.tokens != s->stats.logical_tokens) return "logical tokens are miscounted";
    if (sums.kept != s->held_kept) return "kept tokens are miscounted";
    if (idle != s->stats.sessions_idle || swapped != s->stats.sessions_swapped)
        return "sessions are miscounted";
    return NULL;
}
