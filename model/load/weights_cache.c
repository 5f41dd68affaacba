#include "model/load/weights_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20, NAME_MAX_BYTES = 40 };

static const char magic[8] = "OctPackd";

/* The file's first bytes. The table, a hash of each piece of the data, and the data follow. */
typedef struct header {
    char magic[8];
    uint64_t version;
    uint64_t key;
    uint64_t table_bytes;
    uint64_t data_bytes;
    uint64_t lists_hash; /* hash of table and hashes */
    uint64_t own_hash;   /* hash of the fields above */
} header;

static uint64_t hash_header(const header *h)
{
    return hash_bytes(h, offsetof(header, own_hash), WEIGHTS_CACHE_VERSION);
}

static size_t count_pieces(const weights_image *w)
{
    return (w->bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

static size_t piece_bytes(const weights_image *w, size_t i)
{
    size_t left = w->bytes - i * PIECE_BYTES;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* Bytes of table and hashes, which are read, hashed and written as one. Hashes are unaligned. */
static size_t lists_bytes(const weights_image *w)
{
    return w->table_bytes + count_pieces(w) * sizeof(uint64_t);
}

static size_t data_begin(const weights_image *w) { return sizeof(header) + lists_bytes(w); }

/* ---- names ----------------------------------------------------------------------------------- */

uint64_t weights_cache_key(const safetensors *files, uint64_t seed)
{
    uint64_t h = seed;
    for (size_t i = 0; i < files->n_files; i++) {
        const char *path = files->files[i].path, *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path;
        struct stat st;
        int64_t facts[3] = {-1, 0, 0}; /* for a file that is gone */
        if (stat(path, &st) == 0) {
            facts[0] = st.st_size;
            facts[1] = st.st_mtim.tv_sec;
            facts[2] = st.st_mtim.tv_nsec;
        }
        h = hash_bytes(name, strlen(name), h);
        h = hash_bytes(facts, sizeof facts, h);
    }
    return h;
}

uint64_t weights_place(const char *model_dir)
{
    char *whole = realpath(model_dir, NULL);
    uint64_t h = whole ? hash_bytes(whole, strlen(whole), 0) : 0;
    free(whole);
    return h;
}

/* Sets out to the last part of a path, in characters that any file system takes. */
static void plain_name(const char *path, char out[NAME_MAX_BYTES])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = 0;
    for (; name[n] && n + 1 < NAME_MAX_BYTES; n++) out[n] = strchr(plain, name[n]) ? name[n] : '_';
    out[n] = 0;
}

status weights_cache_path(const weights_image *w, char out[WEIGHTS_CACHE_PATH_MAX], error *err)
{
    char *whole = realpath(w->model_dir, NULL);
    if (!whole) return error_set(err, STATUS_IO, "%s: %s", w->model_dir, strerror(errno));
    char name[NAME_MAX_BYTES], file[256];
    plain_name(whole, name);
    snprintf(file, sizeof file, "%s-%s-v%d-%016llx.weights", name, w->kind, WEIGHTS_CACHE_VERSION,
             (unsigned long long)hash_bytes(whole, strlen(whole), 0));
    free(whole);
    return file_join(out, WEIGHTS_CACHE_PATH_MAX, w->cache_dir, file, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads n bytes at `at`. False on an error or when the file ends before. */
static bool read_at(int fd, void *out, size_t n, size_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (uint8_t *)out + done, n - done, (off_t)(at + done));
        if (got > 0) done += (size_t)got;
        else if (got == 0 || errno != EINTR) return false;
    }
    return true;
}

static status check_header(const weights_image *w, const header *h, size_t file_bytes,
                           const char *path, error *err)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return error_set(err, STATUS_CORRUPT, "%s: not a file of packed weights", path);
    if (h->version != WEIGHTS_CACHE_VERSION)
        return error_set(err, STATUS_UNSUPPORTED, "%s: version %llu, this build has %d", path,
                         (unsigned long long)h->version, WEIGHTS_CACHE_VERSION);
    if (h->own_hash != hash_header(h))
        return error_set(err, STATUS_CORRUPT, "%s: the header is damaged", path);
    if (h->key != w->key)
        return error_set(err, STATUS_INVALID, "%s: stale: made of other files than the model's now",
                         path);
    if (h->table_bytes != w->table_bytes || h->data_bytes != w->bytes)
        return error_set(err, STATUS_INVALID,
                         "%s: %llu bytes of tensors and a table of %llu, due are %zu and %zu", path,
                         (unsigned long long)h->data_bytes, (unsigned long long)h->table_bytes,
                         w->bytes, w->table_bytes);
    size_t due = data_begin(w) + w->bytes;
    if (file_bytes != due)
        return error_set(err, STATUS_CORRUPT, "%s: %zu bytes, the header makes it %zu", path,
                         file_bytes, due);
    return STATUS_IS_OK;
}

typedef struct pieces {
    const weights_image *w;
    uint8_t *hashes;
    int fd;
    atomic_size_t n_bad;
} pieces;

/* Reads and checks pieces. A piece is hashed at once, while it is still in the L2 cache. */
static void read_pieces(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    pieces *p = ctx;
    for (size_t i = from; i < to; i++) {
        size_t n = piece_bytes(p->w, i), at = i * PIECE_BYTES;
        uint64_t due, is = 0;
        memcpy(&due, p->hashes + i * sizeof due, sizeof due);
        bool given_up = p->w->given_up && atomic_load(p->w->given_up);
        bool there = !given_up && read_at(p->fd, p->w->data + at, n, data_begin(p->w) + at);
        if (there) is = hash_bytes(p->w->data + at, n, i);
        if (!there || is != due) atomic_fetch_add(&p->n_bad, 1);
    }
}

static status read_lists(const weights_image *w, int fd, const header *h, uint8_t *lists,
                         const char *path, error *err)
{
    if (!read_at(fd, lists, lists_bytes(w), sizeof *h))
        return error_set(err, STATUS_IO, "%s: the table cannot be read", path);
    if (hash_bytes(lists, lists_bytes(w), 0) != h->lists_hash)
        return error_set(err, STATUS_CORRUPT, "%s: the table of tensors is damaged", path);
    if (memcmp(lists, w->table, w->table_bytes) != 0)
        return error_set(err, STATUS_INVALID, "%s: another table of tensors", path);
    return STATUS_IS_OK;
}

static status read_file(const weights_image *w, int fd, uint8_t *lists, const char *path,
                        error *err)
{
    struct stat st;
    header h;
    if (fstat(fd, &st) != 0) return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return error_set(err, STATUS_INVALID, "%s: not a regular file", path);
    if ((size_t)st.st_size < sizeof h || !read_at(fd, &h, sizeof h, 0))
        return error_set(err, STATUS_CORRUPT, "%s: %lld bytes are less than a header", path,
                         (long long)st.st_size);
    RETURN_IF_ERROR(check_header(w, &h, (size_t)st.st_size, path, err));
    RETURN_IF_ERROR(read_lists(w, fd, &h, lists, path, err));
    pieces p = {.w = w, .hashes = lists + w->table_bytes, .fd = fd};
    thread_pool_for(w->pool, count_pieces(w), 1, read_pieces, &p);
    size_t n_bad = atomic_load(&p.n_bad);
    if (n_bad == 0) return STATUS_IS_OK;
    memset(w->data, 0, w->bytes);
    return error_set(err, STATUS_CORRUPT, "%s: %zu of %zu pieces of the data are damaged", path,
                     n_bad, count_pieces(w));
}

/* Opens with O_NONBLOCK, because opening a FIFO must not wait for a writer. */
status weights_cache_read(const weights_image *w, error *err)
{
    char path[WEIGHTS_CACHE_PATH_MAX];
    RETURN_IF_ERROR(weights_cache_path(w, path, err));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: %s", path,
                         strerror(errno));
    uint8_t *lists = alloc_resize(NULL, NULL, 1, lists_bytes(w));
    status s = lists ? read_file(w, fd, lists, path, err)
                     : error_set(err, STATUS_NO_MEMORY, "%s: out of memory", path);
    alloc_free(NULL, lists);
    close(fd);
    return s;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void hash_pieces(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const pieces *p = ctx;
    for (size_t i = from; i < to; i++) {
        uint64_t h = hash_bytes(p->w->data + i * PIECE_BYTES, piece_bytes(p->w, i), i);
        memcpy(p->hashes + i * sizeof h, &h, sizeof h);
    }
}

static bool write_all(int fd, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = write(fd, (const uint8_t *)data + done, n - done);
        if (put >= 0) done += (size_t)put;
        else if (errno != EINTR) return false;
    }
    return true;
}

/* Writes a temporary file, and renames it once all of it is on the disk. */
static status put_file(const weights_image *w, const header *h, const uint8_t *lists,
                       const char *path, error *err)
{
    char temporary[WEIGHTS_CACHE_PATH_MAX + 16];
    snprintf(temporary, sizeof temporary, "%s.tmp-XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return error_set(err, STATUS_IO, "%s: %s", temporary, strerror(errno));
    bool ok = write_all(fd, h, sizeof *h) && write_all(fd, lists, lists_bytes(w)) &&
              write_all(fd, w->data, w->bytes) && fsync(fd) == 0;
    int why = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && rename(temporary, path) == 0) return STATUS_IS_OK;
    if (ok) why = errno;
    unlink(temporary);
    return error_set(err, STATUS_IO, "%s: cannot be written: %s", path, strerror(why));
}

status weights_cache_write(const weights_image *w, error *err)
{
    char path[WEIGHTS_CACHE_PATH_MAX];
    RETURN_IF_ERROR(weights_cache_path(w, path, err));
    uint8_t *lists = alloc_resize(NULL, NULL, 1, lists_bytes(w));
    if (!lists) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", path);
    memcpy(lists, w->table, w->table_bytes);
    pieces p = {.w = w, .hashes = lists + w->table_bytes};
    thread_pool_for(w->pool, count_pieces(w), 1, hash_pieces, &p);
    header h = {.version = WEIGHTS_CACHE_VERSION,
                .key = w->key,
                .table_bytes = w->table_bytes,
                .data_bytes = w->bytes,
                .lists_hash = hash_bytes(lists, lists_bytes(w), 0)};
    memcpy(h.magic, magic, sizeof magic);
    h.own_hash = hash_header(&h);
    status s = put_file(w, &h, lists, path, err);
    alloc_free(NULL, lists);
    return s;
}
