/* AMX tiles of one thread, as Intel's manual defines them (volume 2, TDPBF16PS, TDPBSSD, TDPBUSD
 * and chapter 3 of volume 1): shapes come from the configuration, and a fault ends the test. */
#ifndef TESTS_EMULATE_AMX_H
#define TESTS_EMULATE_AMX_H

#include "tests/emulate/dot_bf16.h"

enum { EMULATED_TILES = 8, EMULATED_TILE_ROWS = 16, EMULATED_TILE_BYTES = 64 };

typedef struct emulated_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} emulated_config;

typedef struct emulated_tiles {
    emulated_config config;
    uint8_t data[EMULATED_TILES][EMULATED_TILE_ROWS][EMULATED_TILE_BYTES];
} emulated_tiles;

static _Thread_local emulated_tiles emulated_amx;

#define EMULATED static EMULATED_BODY

EMULATED void emulated_check(bool good)
{
    if (!good) __builtin_trap(); /* #UD or #GP */
}

EMULATED void _tile_loadconfig(const void *config)
{
    emulated_tiles *t = &emulated_amx;
    memset(t, 0, sizeof *t);
    memcpy(&t->config, config, sizeof t->config);
    const emulated_config *c = &t->config;
    emulated_check(c->palette == 1 && c->start_row == 0);
    for (int i = 0; i < 14; i++) emulated_check(c->reserved[i] == 0);
    for (int i = 0; i < 16; i++) {
        emulated_check(c->colsb[i] <= EMULATED_TILE_BYTES && c->rows[i] <= EMULATED_TILE_ROWS);
        emulated_check((c->colsb[i] == 0) == (c->rows[i] == 0));
        if (i >= EMULATED_TILES) emulated_check(c->colsb[i] == 0);
    }
}

EMULATED void _tile_release(void) { memset(&emulated_amx, 0, sizeof emulated_amx); }

EMULATED const emulated_config *emulated_shape(int tile)
{
    const emulated_config *c = &emulated_amx.config;
    emulated_check(c->palette == 1 && tile >= 0 && tile < EMULATED_TILES && c->rows[tile] > 0);
    return c;
}

EMULATED void _tile_zero(int tile)
{
    emulated_shape(tile);
    memset(emulated_amx.data[tile], 0, sizeof emulated_amx.data[tile]);
}

EMULATED void _tile_loadd(int tile, const void *from, size_t stride)
{
    const emulated_config *c = emulated_shape(tile);
    memset(emulated_amx.data[tile], 0, sizeof emulated_amx.data[tile]);
    for (int r = 0; r < c->rows[tile]; r++)
        memcpy(emulated_amx.data[tile][r], (const char *)from + (size_t)r * stride, c->colsb[tile]);
}

EMULATED void _tile_stored(int tile, void *to, size_t stride)
{
    const emulated_config *c = emulated_shape(tile);
    for (int r = 0; r < c->rows[tile]; r++)
        memcpy((char *)to + (size_t)r * stride, emulated_amx.data[tile][r], c->colsb[tile]);
}

/* C = A * B: rows of C are A's, columns of C are B's, and A's columns are B's rows. */
EMULATED void emulated_check_dot(int c, int a, int b)
{
    const emulated_config *shape = emulated_shape(c);
    emulated_shape(a);
    emulated_shape(b);
    emulated_check(c != a && c != b && a != b);
    emulated_check(shape->rows[c] == shape->rows[a] && shape->colsb[c] == shape->colsb[b]);
    emulated_check(shape->colsb[a] == shape->rows[b] * 4);
    emulated_check(shape->colsb[c] % 4 == 0);
}

/* Sums even and odd columns, each in a chain from zero; adds both; then adds that to C. */
EMULATED void _tile_dpbf16ps(int c, int a, int b)
{
    emulated_tiles *t = &emulated_amx;
    emulated_check_dot(c, a, b);
    for (int m = 0; m < t->config.rows[c]; m++)
        for (int n = 0; n < t->config.colsb[c] / 4; n++) {
            float halves[2] = {0.0f, 0.0f}, sum;
            for (int k = 0; k < t->config.colsb[a] / 4; k++) {
                uint16_t x[2], y[2];
                memcpy(x, t->data[a][m] + 4 * k, 4);
                memcpy(y, t->data[b][k] + 4 * n, 4);
                for (int i = 0; i < 2; i++) halves[i] = emulated_fma_bf16(x[i], y[i], halves[i]);
            }
            memcpy(&sum, t->data[c][m] + 4 * n, 4);
            float both = emulated_no_denormal(halves[0] + halves[1]);
            sum = emulated_no_denormal(emulated_no_denormal(sum) + both);
            memcpy(t->data[c][m] + 4 * n, &sum, 4);
        }
}

EMULATED void emulated_dot_bytes(int c, int a, int b, bool is_signed)
{
    emulated_tiles *t = &emulated_amx;
    emulated_check_dot(c, a, b);
    for (int m = 0; m < t->config.rows[c]; m++)
        for (int n = 0; n < t->config.colsb[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, t->data[c][m] + 4 * n, 4);
            for (int k = 0; k < t->config.colsb[a]; k++) {
                uint8_t x = t->data[a][m][k];
                sum += (is_signed ? (int8_t)x : x) * (int8_t)t->data[b][k / 4][4 * n + k % 4];
            }
            memcpy(t->data[c][m] + 4 * n, &sum, 4);
        }
}

EMULATED void _tile_dpbssd(int c, int a, int b) { emulated_dot_bytes(c, a, b, true); }

EMULATED void _tile_dpbusd(int c, int a, int b) { emulated_dot_bytes(c, a, b, false); }

#undef EMULATED

#endif
