/* Switches by which a test controls the fake NCCL (nccl.c). */
#ifndef TESTS_FAKE_NCCL_H
#define TESTS_FAKE_NCCL_H

typedef enum fake_nccl_behaviour {
    FAKE_WELL,
    FAKE_NEVER_MEETS,
    FAKE_REFUSES,     /* calls return an error */
    FAKE_NEVER_DOES,  /* enqueued work never completes */
    FAKE_SYNCHRONOUS, /* settled once all ranks have called: for streams that do not wait */
    FAKE_FAILS,       /* enqueued work completes, then the communicator's state is an error */
} fake_nccl_behaviour;

typedef struct fake_stream {
#ifdef __cplusplus
    volatile int n_enqueued, n_done; /* only read there */
#else
    _Atomic int n_enqueued, n_done;
#endif
} fake_stream;

#ifndef __cplusplus
void fake_nccl_behave(fake_nccl_behaviour behaviour);
/* Number of communicators that were made and not aborted. */
int fake_nccl_live(void);
#endif

#endif
