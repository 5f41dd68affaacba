/* Property: parts from a peer make up exactly the bytes that were split, or the first wrong one is
 * refused with a text that names its field; the joined data never grows beyond the size in its
 * first part, nor beyond the limit. */
#include "rpc/worker/codec.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { WHOLE = 200 };

static uint8_t byte_at(size_t i) { return (uint8_t)(i * 31 + 7); }

/* Four bytes of input are one part: how its fields differ from those of the next valid part. */
static void fuzz_parts(const uint8_t *data, size_t size, const part_sizes *sizes, size_t n)
{
    uint8_t whole[WHOLE + 256];
    assembly a = {0};
    for (size_t i = 0; i < sizeof whole; i++) whole[i] = byte_at(i);
    for (; size >= 4; data += 4, size -= 4) {
        error err = {{0}};
        size_t due = a.have < n ? a.have : 0, have = a.have;
        part_message p = part_of(whole, n, due, sizes->part);
        bool sound = a.have < n && n > sizes->part && n <= sizes->whole;
        size_t len = p.data.len;
        if (data[0] % 4 == 1) p.whole_bytes += data[1];
        if (data[0] % 4 == 2) p.offset = data[2];
        if (data[0] % 4 == 3) p.data.len = data[3];
        if (data[0] == 254) p.whole_bytes = UINT64_MAX;
        if (data[0] == 253) p.offset = UINT64_MAX;
        sound &= p.whole_bytes == n && p.offset == due && p.data.len == len;
        bool taken = status_ok(assembly_add(&a, &p, sizes, &err));
        FUZZ_CHECK(taken || strncmp(err.text, "part.", 5) == 0);
        FUZZ_CHECK(taken || a.have == have);
        FUZZ_CHECK(!a.bytes || (a.have <= a.size && a.size <= sizes->whole));
        FUZZ_CHECK(taken || !sound || (a.bytes && a.size != n));
        if (!taken) break;
    }
    for (size_t i = 0; a.bytes && i < a.have; i++) FUZZ_CHECK(a.bytes[i] == byte_at(i));
    assembly_clear(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const part_sizes sizes = {1 + data[0] % 64, WHOLE - 40};
    fuzz_parts(data + 2, size - 2, &sizes, data[1] % WHOLE);
    return 0;
}
