/* What a test tells the fake of NCCL (nccl.c), through symbols of its own. */
#ifndef TESTS_FAKE_NCCL_H
#define TESTS_FAKE_NCCL_H

typedef enum fake_nccl_behaviour {
    FAKE_WELL,
    FAKE_NEVER_MEETS,
    FAKE_REFUSES,     /* calls */
    FAKE_NEVER_DOES,  /* what is enqueued */
    FAKE_SYNCHRONOUS, /* settled when all ranks have called: for streams that do not wait */
    FAKE_FAILS,       /* as the state says, after what was enqueued */
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
/* Communicators that were made and not aborted. */
int fake_nccl_live(void);
#endif

#endif
