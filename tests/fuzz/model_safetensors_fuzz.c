/* Property: a file is refused in one line that begins with its name, or its tensors tile the data:
 * the first begins behind the header, each begins where the one before ended, the last ends with
 * the file, and each has the length of its shape and type.
 *
 * Input: a mode byte. Even: the rest is the file. Odd: two bytes of data length (little-endian),
 * and the rest is the header's text, so that mutations get past the header's length. */
#include "model/load/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static size_t bits_of(safetensors_type t)
{
    static const size_t bits[] = {
#define BITS(name, n) n,
        SAFETENSORS_TYPES(BITS)
#undef BITS
    };
    return bits[t];
}

static void check_tensors(const safetensors *st, const uint8_t *file, size_t size)
{
    uint64_t n = 0;
    memcpy(&n, file, 8);
    size_t end = 8 + (size_t)n;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const safetensors_tensor *t = &st->tensors[i];
        FUZZ_CHECK(t->begin == end && t->bytes <= size - end);
        unsigned __int128 bits = bits_of(t->type);
        FUZZ_CHECK(t->n_dims <= SAFETENSORS_DIMS_MAX);
        for (uint32_t d = 0; d < t->n_dims; d++) bits *= t->shape[d];
        FUZZ_CHECK(bits == (unsigned __int128)t->bytes * 8);
        FUZZ_CHECK(t->file == 3 && utf8_valid((const uint8_t *)t->name, strlen(t->name)));
        end += t->bytes;
    }
    FUZZ_CHECK(end == size);
}

static void check_file(const uint8_t *file, size_t size)
{
    safetensors st = {0};
    arena_init(&st.names, 1024, 0);
    error err = {""};
    status s = safetensors_parse(&st, "file", 3, file, size, &err);
    if (status_ok(s)) check_tensors(&st, file, size);
    else FUZZ_CHECK(strncmp(err.text, "file: ", 6) == 0 && !strchr(err.text, '\n'));
    safetensors_close(&st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    bool whole = data[0] % 2 == 0;
    size_t header = size - 3, tail = (size_t)data[1] | (size_t)data[2] << 8;
    size_t file_size = whole ? size - 1 : 8 + header + tail;
    uint8_t *file = calloc(1, file_size); /* exact, so that over-reads are seen */
    if (!file) return 0;
    if (whole) {
        memcpy(file, data + 1, size - 1);
    } else {
        uint64_t n = header;
        memcpy(file, &n, 8);
        memcpy(file + 8, data + 3, header);
    }
    check_file(file, file_size);
    free(file);
    return 0;
}
