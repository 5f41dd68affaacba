/* Streams for the tokenizer threads, the shortest prompt first: a pairing heap beside a list in
 * order of arrival. Both link streams through the streams' own fields, so adding one needs no
 * memory and cannot fail. */
#include "engine/internal.h"

/* As the scheduler's bound: the oldest waiting stream is next when so many have passed it. */
enum { PASSES_MAX = 8 };

/* ---- the heap -------------------------------------------------------------------------------- */

static bool goes_before(const engine_stream *a, const engine_stream *b)
{
    const prepare_place *x = &a->place, *y = &b->place;
    if (x->priority != y->priority) return x->priority < y->priority;
    if (x->size != y->size) return x->size < y->size;
    return a->arrival < b->arrival;
}

/* Makes one heap of two, either of which may be NULL. */
static engine_stream *join(engine_stream *a, engine_stream *b)
{
    if (!a || !b) return a ? a : b;
    engine_stream *root = goes_before(b, a) ? b : a, *child = root == a ? b : a;
    child->place.sibling = root->place.child;
    if (child->place.sibling) child->place.sibling->place.before = child;
    child->place.before = root;
    root->place.child = child;
    return root;
}

/* Makes one heap of a list of siblings: joins them in pairs, then the pairs from the last on. */
static engine_stream *join_siblings(engine_stream *first)
{
    engine_stream *pairs = NULL, *all = NULL, *next;
    for (; first; first = next) {
        engine_stream *second = first->place.sibling;
        next = second ? second->place.sibling : NULL;
        first->place.sibling = first->place.before = NULL;
        if (second) second->place.sibling = second->place.before = NULL;
        first = join(first, second);
        first->place.sibling = pairs;
        pairs = first;
    }
    for (; pairs; pairs = next) {
        next = pairs->place.sibling;
        pairs->place.sibling = NULL;
        all = join(all, pairs);
    }
    return all;
}

static void leave_heap(prepare_queue *q, engine_stream *s)
{
    prepare_place *p = &s->place;
    engine_stream *children = join_siblings(p->child);
    if (s == q->shortest) {
        q->shortest = children;
        return;
    }
    if (p->before->place.child == s) p->before->place.child = p->sibling;
    else p->before->place.sibling = p->sibling;
    if (p->sibling) p->sibling->place.before = p->before;
    q->shortest = join(q->shortest, children);
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* About how long a prompt takes to prepare: bytes of text, or token ids, which are not encoded. */
static size_t prompt_size(const engine_request *r)
{
    size_t i, k, n = 0;
    json_t *message, *part;
    if (r->prompt) return r->prompt_bytes;
    if (!r->messages) return r->n_prompt_token_ids;
    json_array_foreach(r->messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        n += json_string_length(content);
        json_array_foreach(content, k, part) n += json_string_length(json_object_get(part, "text"));
    }
    return n;
}

void prepare_put(engine *e, engine_stream *s)
{
    prepare_queue *q = &e->prepare;
    s->place = (prepare_place){
        .waits = true,
        .size = prompt_size(&s->request),
        .priority = e->o.policy == SCHED_PRIORITY ? s->request.priority : 0,
    };
    atomic_fetch_add(&s->references, 1);
    pthread_mutex_lock(&q->lock);
    s->place.older = q->last;
    if (q->last) q->last->place.newer = s;
    else q->first = s;
    q->last = s;
    q->shortest = join(q->shortest, s);
    pthread_cond_signal(&q->arrived);
    pthread_mutex_unlock(&q->lock);
}

static void take_out(prepare_queue *q, engine_stream *s)
{
    prepare_place *p = &s->place;
    if (s == q->first) q->n_passed = 0;
    leave_heap(q, s);
    if (p->older) p->older->place.newer = p->newer;
    else q->first = p->newer;
    if (p->newer) p->newer->place.older = p->older;
    else q->last = p->older;
    *p = (prepare_place){0};
}

bool prepare_take_back(engine *e, engine_stream *s)
{
    pthread_mutex_lock(&e->prepare.lock);
    bool waits = s->place.waits;
    if (waits) take_out(&e->prepare, s);
    pthread_mutex_unlock(&e->prepare.lock);
    return waits;
}

engine_stream *prepare_next(engine *e)
{
    prepare_queue *q = &e->prepare;
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->stop) pthread_cond_wait(&q->arrived, &q->lock);
    engine_stream *s = q->n_passed < PASSES_MAX ? q->shortest : q->first;
    if (s && s != q->first) q->n_passed++;
    if (s) take_out(q, s);
    pthread_mutex_unlock(&q->lock);
    return s;
}
