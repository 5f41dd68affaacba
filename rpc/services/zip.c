#include "rpc/services/zip.h"

#include <stdio.h>
#include <string.h>

/* APPNOTE 6.3: version 2.0, bit 3 (sizes follow the data), bit 11 (names are UTF-8), 1980-01-01. */
enum { VERSION = 20, FLAGS = 1 << 3 | 1 << 11, DATE = 1 << 5 | 1 };

static void put16(strbuf *out, uint32_t v)
{
    strbuf_putc(out, (char)(v & 255));
    strbuf_putc(out, (char)(v >> 8 & 255));
}

static void put32(strbuf *out, uint32_t v)
{
    put16(out, v & 65535);
    put16(out, v >> 16);
}

static uint32_t crc_add(uint32_t crc, const uint8_t *data, size_t n)
{
    static const uint32_t nibbles[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ nibbles[crc & 15];
        crc = crc >> 4 ^ nibbles[crc & 15];
    }
    return ~crc;
}

/* Writes the fields that local and central headers share. */
static void put_common(const zip_file *f, strbuf *out)
{
    put16(out, VERSION);
    put16(out, FLAGS);
    put16(out, 0); // stored
    put16(out, 0); // midnight
    put16(out, DATE);
    put32(out, f->crc);
    put32(out, f->bytes);
    put32(out, f->bytes);
    put16(out, (uint32_t)strlen(f->name));
    put16(out, 0); // no extra field
}

void zip_begin(zip *z, const char *name, strbuf *out)
{
    size_t before = out->size;
    zip_file *f = &z->files[z->n_files++];
    *f = (zip_file){.offset = (uint32_t)z->bytes};
    snprintf(f->name, sizeof f->name, "%s", name);
    put32(out, 0x04034b50);
    put_common(f, out);
    strbuf_puts(out, f->name);
    z->bytes += out->size - before;
}

void zip_add(zip *z, const void *data, size_t n, strbuf *out)
{
    zip_file *f = &z->files[z->n_files - 1];
    f->crc = crc_add(f->crc, data, n);
    f->bytes += (uint32_t)n;
    z->bytes += n;
    strbuf_append(out, data, n);
}

void zip_end(zip *z, strbuf *out)
{
    size_t before = out->size;
    const zip_file *f = &z->files[z->n_files - 1];
    put32(out, 0x08074b50);
    put32(out, f->crc);
    put32(out, f->bytes);
    put32(out, f->bytes);
    z->bytes += out->size - before;
}

static void put_central(const zip_file *f, strbuf *out)
{
    put32(out, 0x02014b50);
    put16(out, VERSION); // made by
    put_common(f, out);
    put16(out, 0); // no comment
    put16(out, 0); // the first disk
    put16(out, 0); // no attributes
    put32(out, 0);
    put32(out, f->offset);
    strbuf_puts(out, f->name);
}

void zip_finish(zip *z, strbuf *out)
{
    size_t before = out->size;
    uint32_t offset = (uint32_t)z->bytes;
    for (uint32_t i = 0; i < z->n_files; i++) put_central(&z->files[i], out);
    uint32_t bytes = (uint32_t)(out->size - before);
    put32(out, 0x06054b50);
    put16(out, 0); // one disk
    put16(out, 0);
    put16(out, z->n_files);
    put16(out, z->n_files);
    put32(out, bytes);
    put32(out, offset);
    put16(out, 0); // no comment
    z->bytes += out->size - before;
}
