/* kernels, private: what files with AMX tiles share. Some of the compiler's intrinsics do not
 * declare that they read or write memory. So tiles_settle stands between plain stores and tiles
 * that load the stored memory, and between plain loads or stores and tiles that use the same memory
 * again. */
#ifndef KERNELS_X86_TILES_AMX_H
#define KERNELS_X86_TILES_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* The operand of LDTILECFG, palette 1: tiles of up to 16 rows of 64 bytes. */
typedef struct tiles_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles_config;

static inline void tiles_settle(void) { __asm__ volatile("" ::: "memory"); }

static inline void tiles_begin(const tiles_config *config)
{
    __asm__ volatile("" ::"r"(config) : "memory");
    _tile_loadconfig(config);
}

static inline void tiles_end(void) { _tile_release(); }

#endif
