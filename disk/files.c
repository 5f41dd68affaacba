/* The files of a store: their format, and every call of the system. */
#include "disk/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first bytes of the index. Numbers are in the order of this machine's bytes: another's files
 * have another version or checksum, and are emptied. */
typedef struct file_header {
    char magic[8];
    uint64_t version, identity, block_bytes, slot_bytes;
    uint64_t checksum; // of the fields before it
} file_header;

/* Slot i's entry is at DISK_ALIGN + i * sizeof. An entry that is all zero is an empty slot's. */
typedef struct file_entry {
    disk_key key;
    uint64_t checksum, stamp;
    uint64_t own; // checksum of the fields before it
} file_entry;

_Static_assert(sizeof(file_entry) == 40, "entries have no padding");

static const char magic[8] = "octavoKV";

/* ---- reading and writing --------------------------------------------------------------------- */

static int read_all(const disk_files *f, int fd, void *to, size_t n, off_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = f->io.read(f->io.ctx, fd, (char *)to + done, n - done, at + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        done += (size_t)got;
        /* The end of a file that was cut short; O_DIRECT refuses to go on from an odd place. */
        if (got == 0 || (fd == f->blocks && done % DISK_ALIGN != 0)) {
            memset((char *)to + done, 0, n - done);
            return 0;
        }
    }
    return 0;
}

static off_t slot_place(const disk_files *f, uint32_t slot)
{
    return (off_t)((uint64_t)slot * f->slot_bytes);
}

static off_t entry_place(uint32_t slot)
{
    return (off_t)(DISK_ALIGN + (uint64_t)slot * sizeof(file_entry));
}

int files_read_block(disk_files *f, uint32_t slot, uint8_t *buffer)
{
    return read_all(f, f->blocks, buffer, f->slot_bytes, slot_place(f, slot));
}

int files_write_block(disk_files *f, uint32_t slot, const uint8_t *buffer)
{
    return calls_write(&f->io, f->blocks, buffer, f->slot_bytes, slot_place(f, slot));
}

/* A block's checksum depends on its key and the identity, so that no block passes for another. */
uint64_t files_checksum(const disk_files *f, const disk_key *key, const uint8_t *block)
{
    return hash_bytes(block, f->block_bytes, hash_bytes(key, sizeof *key, f->identity));
}

/* The checksum of an entry, which depends on its slot too. */
static uint64_t own_checksum(const disk_files *f, uint32_t slot, const file_entry *e)
{
    return hash_bytes(e, offsetof(file_entry, own), f->identity + hash_mix64(slot + 1ull));
}

int files_write_entry(disk_files *f, uint32_t slot, const disk_key *key, uint64_t checksum,
                      uint64_t stamp)
{
    file_entry e = {.key = *key, .checksum = checksum, .stamp = stamp};
    e.own = own_checksum(f, slot, &e);
    return calls_write(&f->io, f->index, &e, sizeof e, entry_place(slot));
}

int files_clear_entry(disk_files *f, uint32_t slot)
{
    static const file_entry empty;
    return calls_write(&f->io, f->index, &empty, sizeof empty, entry_place(slot));
}

int files_sync(disk_files *f) { return calls_sync(&f->io, f->index); }

int files_clear(disk_files *f)
{
    if (ftruncate(f->index, DISK_ALIGN) != 0) return errno;
    return files_sync(f);
}

int files_exist(const disk_files *f)
{
    struct stat index, blocks;
    if (fstat(f->index, &index) != 0 || fstat(f->blocks, &blocks) != 0) return errno;
    return index.st_nlink > 0 && blocks.st_nlink > 0 ? 0 : ENOENT;
}

status files_scan(disk_files *f,
                  void (*found)(void *ctx, uint32_t slot, const disk_key *key, uint64_t checksum,
                                uint64_t stamp),
                  void *ctx, error *err)
{
    enum { AT_ONCE = 1024 };
    static const file_entry empty;
    file_entry entries[AT_ONCE];
    struct stat st;
    if (fstat(f->index, &st) != 0) return error_set(err, STATUS_IO, "index: %s", strerror(errno));
    /* The file is at most n_slots entries long, and no slot behind its end was ever used. */
    for (uint32_t first = 0; first < f->n_slots && entry_place(first) < st.st_size;
         first += AT_ONCE) {
        uint32_t n = f->n_slots - first < AT_ONCE ? f->n_slots - first : AT_ONCE;
        int why = read_all(f, f->index, entries, n * sizeof *entries, entry_place(first));
        if (why) return error_set(err, STATUS_IO, "index: %s", strerror(why));
        for (uint32_t i = 0; i < n; i++) {
            const file_entry *e = &entries[i];
            if (memcmp(e, &empty, sizeof *e) == 0) continue;
            if (e->own != own_checksum(f, first + i, e)) continue;
            found(ctx, first + i, &e->key, e->checksum, e->stamp);
        }
    }
    return STATUS_IS_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A name in the directory may lead to a file that others wrote, or that has another use too. */
static status check_file(const char *dir, const char *name, int fd, error *err)
{
    const char *why = NULL;
    struct stat st;
    if (fstat(fd, &st) != 0) why = strerror(errno);
    else if (!S_ISREG(st.st_mode)) why = "it is not a regular file";
    else if (st.st_uid != geteuid()) why = "the file belongs to another user";
    else if (st.st_nlink != 1) why = "the file has other names too (hard links)";
    return why ? error_set(err, STATUS_IO, "%s/%s: %s", dir, name, why) : STATUS_IS_OK;
}

static status open_file(const disk_files *f, const char *dir, const char *name, int flags, int *fd,
                        error *err)
{
    const int always = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    *fd = openat(f->dir, name, always | flags, 0600);
    if (*fd < 0 && flags) *fd = openat(f->dir, name, always, 0600);
    if (*fd >= 0) return check_file(dir, name, *fd, err);
    return error_set(err, STATUS_IO, "%s/%s: %s", dir, name, strerror(errno));
}

/* A user who can write into the directory can replace its files, so only its owner may. */
static status check_dir(const disk_files *f, const char *dir, error *err)
{
    struct stat st;
    if (fstat(f->dir, &st) != 0) return error_set(err, STATUS_IO, "%s: %s", dir, strerror(errno));
    if (st.st_uid != geteuid())
        return error_set(err, STATUS_IO, "%s: the directory belongs to another user", dir);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return error_set(err, STATUS_IO, "%s: other users may write into the directory (mode %04o)",
                         dir, (unsigned)(st.st_mode & 07777));
    return STATUS_IS_OK;
}

static status open_dir(disk_files *f, const char *dir, error *err)
{
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return error_set(err, STATUS_IO, "%s: cannot be made: %s", dir, strerror(errno));
    f->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->dir < 0) return error_set(err, STATUS_IO, "%s: %s", dir, strerror(errno));
    RETURN_IF_ERROR(check_dir(f, dir, err));
    RETURN_IF_ERROR(open_file(f, dir, "lock", 0, &f->lock, err));
    if (flock(f->lock, LOCK_EX | LOCK_NB) == 0) return STATUS_IS_OK;
    if (errno == EWOULDBLOCK)
        return error_set(err, STATUS_UNAVAILABLE, "%s: another process uses this directory", dir);
    return error_set(err, STATUS_IO, "%s/lock: %s", dir, strerror(errno));
}

/* Files that happen to have the names of the store's are not the store's to empty. */
static status check_contents(const disk_files *f, const char *dir, error *err)
{
    struct stat index, blocks;
    char begin[sizeof magic];
    if (fstat(f->index, &index) != 0 || fstat(f->blocks, &blocks) != 0)
        return error_set(err, STATUS_IO, "%s: %s", dir, strerror(errno));
    if (index.st_size == 0 && blocks.st_size > 0)
        return error_set(err, STATUS_IO,
                         "%s/blocks: the file is not a disk cache's: its index is "
                         "empty; name another directory, or remove it",
                         dir);
    if (index.st_size == 0) return STATUS_IS_OK;
    int why = read_all(f, f->index, begin, sizeof begin, 0);
    if (why) return error_set(err, STATUS_IO, "%s/index: %s", dir, strerror(why));
    if (memcmp(begin, magic, sizeof magic) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_IO,
                     "%s/index: the file is not a disk cache's; name another "
                     "directory, or remove it",
                     dir);
}

static status restrict_modes(const disk_files *f, const char *dir, error *err)
{
    const int fds[] = {f->lock, f->index, f->blocks};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fchmod(fds[i], 0600) != 0)
            return error_set(err, STATUS_IO, "%s: the files cannot be given the mode 0600: %s", dir,
                             strerror(errno));
    return STATUS_IS_OK;
}

static file_header header_of(const disk_files *f)
{
    file_header h = {.version = DISK_VERSION,
                     .identity = f->identity,
                     .block_bytes = f->block_bytes,
                     .slot_bytes = f->slot_bytes};
    memcpy(h.magic, magic, sizeof magic);
    h.checksum = hash_bytes(&h, offsetof(file_header, checksum), 0);
    return h;
}

/* Empties the files, and makes them this store's. The index has a header at every moment, and on
 * the disk before there are blocks, so that a sudden end leaves files that are the store's. */
static int make_ours(const disk_files *f, const file_header *header, bool is_new)
{
    if (ftruncate(f->blocks, 0) != 0) return errno;
    if (!is_new && ftruncate(f->index, DISK_ALIGN) != 0) return errno;
    int why = calls_write(&f->io, f->index, header, sizeof *header, 0);
    return why ? why : calls_sync(&f->io, f->index);
}

/* Empties the files unless their header is that of this store. */
static status check_header(disk_files *f, const char *dir, bool *was_foreign, error *err)
{
    static const file_header none;
    file_header want = header_of(f), have = none;
    int why = read_all(f, f->index, &have, sizeof have, 0);
    bool is_new = memcmp(&have, &none, sizeof have) == 0;
    bool fits = memcmp(&have, &want, sizeof have) == 0;
    *was_foreign = !why && !is_new && !fits;
    if (!why && !fits) why = make_ours(f, &want, is_new);
    if (why) return error_set(err, STATUS_IO, "%s/index: %s", dir, strerror(why));
    return STATUS_IS_OK;
}

static bool cut_file(int fd, off_t size)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_size <= size || ftruncate(fd, size) == 0);
}

/* Cuts files that are longer than the store's size, which may have become smaller, so that a slot
 * that is out of use now is empty when the store grows again. */
static status cut_files(disk_files *f, const char *dir, error *err)
{
    if (cut_file(f->index, entry_place(f->n_slots)) &&
        cut_file(f->blocks, slot_place(f, f->n_slots)))
        return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "%s: %s", dir, strerror(errno));
}

status files_open(disk_files *f, const disk_options *o, bool *was_foreign, error *err)
{
    *f = (disk_files){.dir = -1,
                      .lock = -1,
                      .index = -1,
                      .blocks = -1,
                      .block_bytes = o->block_bytes,
                      .identity = o->identity,
                      .io = o->io ? *o->io : calls_system};
    f->slot_bytes = (o->block_bytes + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN;
    uint64_t n =
        o->bytes > DISK_ALIGN ? (o->bytes - DISK_ALIGN) / (f->slot_bytes + sizeof(file_entry)) : 0;
    if (n == 0)
        return error_set(err, STATUS_INVALID,
                         "%llu bytes are less than a block, which has %zu bytes here",
                         (unsigned long long)o->bytes, f->slot_bytes);
    f->n_slots = n < DISK_SLOTS_MOST ? (uint32_t)n : DISK_SLOTS_MOST;
    RETURN_IF_ERROR(open_dir(f, o->dir, err));
    RETURN_IF_ERROR(open_file(f, o->dir, "index", 0, &f->index, err));
    /* Reads past the page cache where the file system can, so that the cache of blocks does not
     * fill memory a second time. */
    RETURN_IF_ERROR(open_file(f, o->dir, "blocks", O_DIRECT, &f->blocks, err));
    RETURN_IF_ERROR(check_contents(f, o->dir, err));
    RETURN_IF_ERROR(restrict_modes(f, o->dir, err));
    RETURN_IF_ERROR(check_header(f, o->dir, was_foreign, err));
    return cut_files(f, o->dir, err);
}

void files_close(disk_files *f)
{
    const int fds[] = {f->blocks, f->index, f->lock, f->dir};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
}
