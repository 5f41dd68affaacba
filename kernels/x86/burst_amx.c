/* The rate of AMX tiles from registers alone (burst_avx2.c). Each of four sums takes two of four
 * operands, as in a product of two tiles by two. */
#include "kernels/isa.h"
#include "kernels/x86/tiles_amx.h"

#include <string.h>

enum { TILES = 8, ROWS = 16, BYTES = 64, PRODUCTS = 4 };

/* Tiles 0 to 3 are sums, which start as zeros; tiles 4 to 7 are operands, which all hold
 * `bytes`. */
static void begin(const void *bytes)
{
    tiles_config c = {.palette = 1};
    for (int t = 0; t < TILES; t++) {
        c.row_bytes[t] = BYTES;
        c.rows[t] = ROWS;
    }
    tiles_begin(&c);
    tiles_settle();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, bytes, BYTES);
    _tile_loadd(5, bytes, BYTES);
    _tile_loadd(6, bytes, BYTES);
    _tile_loadd(7, bytes, BYTES);
}

static double dot_burst__amx(size_t rounds, float *sink)
{
    _Alignas(64) uint16_t ones[ROWS][BYTES / 2];
    _Alignas(64) float sums[ROWS][ROWS];
    for (int i = 0; i < ROWS * BYTES / 2; i++) ones[i / (BYTES / 2)][i % (BYTES / 2)] = 0x3f80;
    begin(ones);
    for (size_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, BYTES);
    tiles_settle();
    tiles_end();
    *sink += sums[0][0];
    return 2.0 * PRODUCTS * ROWS * ROWS * BYTES / 2 * (double)rounds;
}

static double int_burst__amx(size_t rounds, float *sink)
{
    _Alignas(64) int8_t threes[ROWS][BYTES];
    _Alignas(64) int32_t sums[ROWS][ROWS];
    memset(threes, 3, sizeof threes);
    begin(threes);
    for (size_t i = 0; i < rounds; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, sums, BYTES);
    tiles_settle();
    tiles_end();
    *sink += (float)sums[0][0];
    return 2.0 * PRODUCTS * ROWS * ROWS * BYTES * (double)rounds;
}

void kern_burst_fill_amx(kern_isa *isa)
{
    isa->dot_burst = dot_burst__amx;
    isa->int_burst = int_burst__amx;
}
