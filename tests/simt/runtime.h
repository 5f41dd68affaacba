/* Device memory as the emulated CUDA runtime knows it (runtime.cc), for device.cc. */
#ifndef TESTS_SIMT_RUNTIME_H
#define TESTS_SIMT_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

/* The running thread's current device. */
struct simt_current_device {
    uint32_t ordinal;
    bool shares; /* its memory may be shared */
};
extern thread_local simt_current_device simt_current;

/* Memory of a device, or of the host for it, is there, or is about to be freed. */
void simt_note_memory(void *p, size_t bytes, uint32_t ordinal, bool on_host);
void simt_forget_memory(void *p);

#endif
