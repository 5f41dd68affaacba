/* Switches by which a test controls the fake NCCL (nccl.c), and the streams that it takes. */
#ifndef TESTS_FAKE_NCCL_H
#define TESTS_FAKE_NCCL_H

#include <stddef.h>

typedef enum fake_nccl_behaviour {
    FAKE_WELL,
    FAKE_NEVER_MEETS,
    FAKE_REFUSES,    /* calls return an error */
    FAKE_NEVER_DOES, /* enqueued work never completes */
    FAKE_BLOCKS,     /* collectives do not return before an abort */
    FAKE_FAILS,      /* enqueued work completes, then the communicator's state is an error */
} fake_nccl_behaviour;

/* A stream. Without `submit` an enqueued call is done when all ranks have enqueued theirs. With it
 * a call is work of the stream, which waits there for the other ranks: submit(ctx, run, call,
 * bytes) copies the call and runs run(call) in the stream's order. */
typedef struct fake_stream {
#ifdef __cplusplus
    volatile int n_enqueued, n_done; /* only read there */
#else
    _Atomic int n_enqueued, n_done;
#endif
    void (*submit)(void *ctx, void (*run)(const void *call), const void *call, size_t bytes);
    void *ctx;
} fake_stream;

#ifndef __cplusplus
void fake_nccl_behave(fake_nccl_behaviour behaviour);
/* Number of communicators that were made and not aborted. */
int fake_nccl_live(void);
/* How often a state was asked for. */
int fake_nccl_polls(void);
/* Bytes that all ranks together have given to gathers. */
size_t fake_nccl_gathered(void);
#endif

#endif
