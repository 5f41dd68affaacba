/* Property: for any bytes of a descriptor set, reading ends and stays inside them (as does each
 * range that it returns), and a file that is found by name or symbol is part of its own closure. */
#include "rpc/grpc/descriptors.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void check_file(const descriptor_set *set, size_t file)
{
    FUZZ_CHECK(file <= set->n_files);
    if (file == set->n_files) return;
    uint64_t closure = descriptor_set_closure(set, file);
    FUZZ_CHECK(closure >> file & 1);
    FUZZ_CHECK(set->n_files == 64 || closure >> set->n_files == 0);
}

/* The first byte is the length of the requested name, which follows. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size - 1 < data[0]) return 0;
    byte_range name = {data + 1, data[0]};
    byte_range bytes = {data + 1 + data[0], size - 1 - data[0]};
    descriptor_set set;
    status s = descriptor_set_open(bytes, &set);
    FUZZ_CHECK(set.n_files <= DESCRIPTOR_FILES_MAX);
    for (size_t i = 0; i < set.n_files; i++) {
        FUZZ_CHECK(set.files[i].data >= bytes.data);
        FUZZ_CHECK(set.files[i].data + set.files[i].size <= bytes.data + bytes.size);
    }
    if (!status_ok(s)) return 0;
    check_file(&set, descriptor_set_file(&set, name));
    check_file(&set, descriptor_set_symbol(&set, name));
    return 0;
}
