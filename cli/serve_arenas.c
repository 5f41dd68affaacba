/* jemalloc makes an arena when a thread without one allocates for the first time, and version 5.3
 * crashes where there is no memory for it. So before the first request as many threads as jemalloc
 * may make arenas (four for each core) exist at once and allocate. */
#include "cli/serve.h"

#include <pthread.h>
#include <stdlib.h>

enum { ARENAS_OF_A_CORE = 4, THREADS_MAX = 1024, STACK_BYTES = 128 * 1024 };

typedef struct gathering {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t n_there;
    bool over;
} gathering;

static void *touch(void *ctx)
{
    gathering *g = ctx;
    void *volatile some = malloc(1);
    pthread_mutex_lock(&g->lock);
    g->n_there++;
    pthread_cond_broadcast(&g->changed);
    while (!g->over) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    free(some);
    return NULL;
}

void serve_make_arenas(void)
{
    size_t n = (size_t)cpu_count_allowed() * ARENAS_OF_A_CORE, started = 0;
    if (n > THREADS_MAX) n = THREADS_MAX;
    pthread_t *threads = calloc(n, sizeof *threads);
    gathering g = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_attr_t small;
    if (!threads || pthread_attr_init(&small) != 0) {
        free(threads);
        return;
    }
    pthread_attr_setstacksize(&small, STACK_BYTES);
    while (started < n && pthread_create(&threads[started], &small, touch, &g) == 0) started++;
    pthread_mutex_lock(&g.lock);
    while (g.n_there < started) pthread_cond_wait(&g.changed, &g.lock);
    g.over = true;
    pthread_cond_broadcast(&g.changed);
    pthread_mutex_unlock(&g.lock);
    for (size_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    pthread_attr_destroy(&small);
    free(threads);
}
