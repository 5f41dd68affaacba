/* Compresses answers that are sent whole, for clients that take gzip.
 *
 * An answer is compressed while it is sent, a portion in each call of libmicrohttpd: a long one
 * neither occupies a thread that serves other clients too, nor is in memory twice. An answer holds
 * nothing that its own request did not ask for, so its length tells an observer of an encrypted
 * connection no more than the length of the plain answer does. */
#include "rpc/http/internal.h"

#include <stdlib.h>
#include <zlib.h>

enum {
    PORTION_BYTES = 256 * 1024, // taken in one call; a few milliseconds
    BLOCK_BYTES = 32 * 1024,
    GZIP_WINDOW_BITS = 13 + 16, // 8 KiB, with gzip's head and end
    GZIP_MEMORY = 6,            // with the window: 64 KiB for each answer on its way
};

/* zlib's state, for the text in e->out. */
struct compression {
    z_stream z;
    size_t taken; // bytes of the text that zlib was given
    bool ended;
};

bool compress_pays(const exchange *e) { return e->out.size >= HTTP_COMPRESSED_BYTES_MIN; }

/* Gives zlib the next portion. Every portion but the last is flushed, so that each call has bytes
 * to send however well the text compresses. */
static int next_portion(compression *c, const strbuf *text)
{
    size_t rest = text->size - c->taken, n = rest < PORTION_BYTES ? rest : PORTION_BYTES;
    if (c->z.avail_in == 0) {
        c->z.next_in = (Bytef *)text->data + c->taken;
        c->z.avail_in = (uInt)n;
        c->taken += n;
    }
    return c->taken == text->size ? Z_FINISH : Z_SYNC_FLUSH;
}

/* libmicrohttpd's callback for more of the answer. */
static ssize_t read_compressed(void *ctx, uint64_t position, char *buffer, size_t size)
{
    exchange *e = ctx;
    compression *c = e->compression;
    (void)position;
    c->z.next_out = (Bytef *)buffer;
    c->z.avail_out = (uInt)size;
    while (c->z.avail_out == size && !c->ended) {
        int got = deflate(&c->z, next_portion(c, &e->out));
        c->ended = got == Z_STREAM_END;
        if (got != Z_OK && got != Z_STREAM_END && got != Z_BUF_ERROR)
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (c->z.avail_out == size) return MHD_CONTENT_READER_END_OF_STREAM;
    return (ssize_t)(size - c->z.avail_out);
}

struct MHD_Response *compress_response(exchange *e)
{
    compression *c = calloc(1, sizeof *c);
    if (!c || deflateInit2(&c->z, Z_BEST_SPEED, Z_DEFLATED, GZIP_WINDOW_BITS, GZIP_MEMORY,
                           Z_DEFAULT_STRATEGY) != Z_OK) {
        free(c);
        return NULL;
    }
    e->compression = c;
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_compressed, e, NULL);
    if (r && MHD_add_response_header(r, "Content-Encoding", "gzip") == MHD_YES) return r;
    if (r) MHD_destroy_response(r);
    return NULL;
}

void compress_destroy(exchange *e)
{
    if (!e->compression) return;
    deflateEnd(&e->compression->z);
    free(e->compression);
    e->compression = NULL;
}
