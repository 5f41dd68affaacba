/* The numbers of requests for which the backend keeps something beside their pages (step_seq.note),
 * and the bytes that it may take. */
#include "scheduler/sched_internal.h"

#include <inttypes.h>

uint64_t sched_note_bytes(const sched *s, const retrieval_spec *spec, uint32_t n_prompt,
                          uint32_t max_new_tokens, uint32_t n)
{
    return retrieval_kept_bytes(spec, &s->options.geometry, n_prompt, n_prompt + max_new_tokens, n);
}

status sched_note_check(const sched *s, const retrieval_spec *spec, uint32_t n_prompt,
                        uint32_t max_new_tokens, uint32_t n, error *err)
{
    uint64_t most = s->options.note_bytes;
    uint64_t bytes = sched_note_bytes(s, spec, n_prompt, max_new_tokens, n);
    if (most == 0 || bytes <= most) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT,
                     "retrieval: what token_step, preselect_block or DYNAMIC keep for %" PRIu32
                     " choices of %" PRIu32 " tokens takes up to %" PRIu64
                     " bytes beside their pages, and the KV cache has %" PRIu64
                     " for it: ask for fewer choices, larger blocks or a smaller "
                     "second_block_count, or give the KV cache more memory",
                     n, n_prompt + max_new_tokens, bytes, most);
}

bool sched_notes_reserve(sched *s)
{
    uint32_t n = s->n_notes + s->n_live + 1;
    if (n <= s->notes_capacity) return true;
    if (n < 2 * s->notes_capacity) n = 2 * s->notes_capacity;
    uint32_t *numbers = alloc_resize(&s->alloc, s->free_notes, n, sizeof *numbers);
    if (numbers) s->free_notes = numbers;
    sched_note *ended = alloc_resize(&s->alloc, s->ended_notes, n, sizeof *ended);
    if (ended) s->ended_notes = ended;
    if (!numbers || !ended) return false;
    s->notes_capacity = n;
    return true;
}

bool sched_note_lacks(const sched *s, const sched_entry *e, bool others_lack)
{
    if (e->note || e->note_bytes == 0 || s->options.note_bytes == 0) return false;
    return others_lack || e->note_bytes > s->options.note_bytes - s->note_bytes;
}

void sched_note_take(sched *s, sched_entry *e)
{
    if (e->note || e->note_bytes == 0) return;
    e->note = s->n_free_notes > 0 ? s->free_notes[--s->n_free_notes] : ++s->n_notes;
    s->note_bytes += e->note_bytes;
}

void sched_note_end(sched *s, sched_entry *e)
{
    if (e->note) s->ended_notes[s->n_ended_notes++] = (sched_note){e->note, e->note_bytes};
    e->note = 0;
}

/* Requests that are over wait for the next call to be forgotten, but others may wait for what is
 * kept for them, and no call need follow. */
static void end_notes(sched *s)
{
    for (sched_entry *e = s->ended; e; e = e->next_ended)
        if (e->live == 0 && e->n_running == 0 && e->listed == 0) sched_note_end(s, e);
}

void sched_notes_tell(sched *s, sched_work *w)
{
    end_notes(s);
    if (w->told) w->plan.n_ended_notes = 0;
    w->told = false;
    while (s->n_ended_notes > 0 && w->plan.n_ended_notes < STEP_ENDED_NOTES) {
        sched_note note = s->ended_notes[--s->n_ended_notes];
        w->ended_notes[w->plan.n_ended_notes++] = note.number;
        s->free_notes[s->n_free_notes++] = note.number;
        s->note_bytes -= note.bytes;
    }
}
