/* The files of records: a header, then the bytes. */
#include "disk/record_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Numbers are in the order of this machine's bytes: another's files have another version. */
typedef struct file_header {
    char magic[8];
    uint64_t version, identity;
    record_facts facts;
    uint64_t own; // checksum of the fields before it
} file_header;

_Static_assert(sizeof(file_header) == 80, "headers have no padding");

enum { RECORDS_VERSION = 2, KEY_DIGITS = 2 * sizeof(disk_key), NAME_BYTES = KEY_DIGITS + 1 };

static const char magic[8] = "octavoSE";
static const char unfinished[] = "new";

/* ---- names ----------------------------------------------------------------------------------- */

static void name_of(const disk_key *key, char out[NAME_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof key->bytes; i++) {
        out[2 * i] = digits[key->bytes[i] >> 4];
        out[2 * i + 1] = digits[key->bytes[i] & 15];
    }
    out[KEY_DIGITS] = '\0';
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool key_of_name(const char *name, disk_key *out)
{
    if (strlen(name) != KEY_DIGITS) return false;
    for (size_t i = 0; i < sizeof out->bytes; i++) {
        int high = digit_of(name[2 * i]), low = digit_of(name[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* EBADMSG: the file ends before. */
static int read_whole(const record_files *f, int fd, void *to, size_t n, off_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = f->io.read(f->io.ctx, fd, (char *)to + done, n - done, at + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return EBADMSG;
        done += (size_t)got;
    }
    return 0;
}

/* ---- one file -------------------------------------------------------------------------------- */

static uint64_t own_checksum(const file_header *h)
{
    return hash_bytes(h, offsetof(file_header, own), h->identity);
}

/* Bytes of one record do not pass for those of another. */
static uint64_t begin_checksum(const record_files *f, const disk_key *key)
{
    return hash_bytes(key, sizeof *key, f->identity);
}

static size_t part_at(uint64_t at, uint64_t n_bytes)
{
    return n_bytes - at < RECORD_PART ? (size_t)(n_bytes - at) : RECORD_PART;
}

uint64_t record_file_bytes(uint64_t n_bytes) { return sizeof(file_header) + n_bytes; }

/* *fd stays -1 unless this returns 0. A file that is not the store's own counts as none. */
static int open_record(const record_files *f, const disk_key *key, int *fd, struct stat *st)
{
    char name[NAME_BYTES];
    name_of(key, name);
    *fd = -1;
    int opened = openat(f->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (opened < 0) return errno;
    int why = fstat(opened, st) != 0 ? errno : 0;
    if (!why && (!S_ISREG(st->st_mode) || st->st_uid != geteuid() || st->st_nlink != 1))
        why = ENOENT;
    if (why) close(opened);
    else *fd = opened;
    return why;
}

static int read_header(const record_files *f, int fd, const struct stat *st, const disk_key *key,
                       file_header *h)
{
    int why = read_whole(f, fd, h, sizeof *h, 0);
    if (why) return why;
    if (memcmp(h->magic, magic, sizeof magic) != 0 || h->own != own_checksum(h) ||
        memcmp(&h->facts.key, key, sizeof *key) != 0)
        return EBADMSG;
    if (h->version != RECORDS_VERSION || h->identity != f->identity) return EXDEV;
    uint64_t n = h->facts.n_bytes;
    return n < INT64_MAX / 2 && (uint64_t)st->st_size == record_file_bytes(n) ? 0 : EBADMSG;
}

static int read_parts(const record_files *f, int fd, const file_header *h, disk_record_take take,
                      void *ctx)
{
    uint64_t n_bytes = h->facts.n_bytes, sum = begin_checksum(f, &h->facts.key);
    uint8_t *part = malloc(part_at(0, n_bytes) + 1);
    int why = part ? 0 : ENOMEM;
    for (uint64_t at = 0; !why && (at < n_bytes || at == 0); at += RECORD_PART) {
        size_t n = part_at(at, n_bytes);
        why = read_whole(f, fd, part, n, (off_t)record_file_bytes(at));
        if (!why && !take(ctx, at, part, n, n_bytes)) why = ECANCELED;
        if (!why) sum = hash_bytes(part, n, sum);
    }
    free(part);
    return !why && sum != h->facts.checksum ? EBADMSG : why;
}

int record_files_read(record_files *f, const disk_key *key, record_facts *facts,
                      disk_record_take take, void *ctx)
{
    int fd;
    struct stat st;
    file_header h;
    int why = open_record(f, key, &fd, &st);
    if (why) return why;
    why = read_header(f, fd, &st, key, &h);
    if (!why) why = read_parts(f, fd, &h, take, ctx);
    close(fd);
    if (!why) *facts = h.facts;
    return why;
}

/* The header comes last, since it has the checksum. */
static int fill_file(const record_files *f, int fd, file_header *h, record_source source)
{
    uint64_t n_bytes = h->facts.n_bytes, sum = begin_checksum(f, &h->facts.key);
    for (uint64_t at = 0; at < n_bytes || at == 0; at += RECORD_PART) {
        size_t n = part_at(at, n_bytes);
        const void *bytes = source.part(source.ctx, at, n);
        if (!bytes) return ECANCELED;
        sum = hash_bytes(bytes, n, sum);
        int why = calls_write(&f->io, fd, bytes, n, (off_t)record_file_bytes(at));
        if (why) return why;
    }
    h->facts.checksum = sum;
    h->own = own_checksum(h);
    int why = calls_write(&f->io, fd, h, sizeof *h, 0);
    return why ? why : calls_sync(&f->io, fd);
}

int record_files_write(record_files *f, const record_facts *facts, record_source source)
{
    char name[NAME_BYTES];
    file_header h = {.version = RECORDS_VERSION, .identity = f->identity, .facts = *facts};
    memcpy(h.magic, magic, sizeof magic);
    name_of(&facts->key, name);
    if (unlinkat(f->dir, unfinished, 0) != 0 && errno != ENOENT) return errno;
    int fd = openat(f->dir, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    int why = fill_file(f, fd, &h, source);
    if (close(fd) != 0 && !why) why = errno;
    if (!why && renameat(f->dir, unfinished, f->dir, name) != 0) why = errno;
    if (!why) return calls_sync(&f->io, f->dir);
    unlinkat(f->dir, unfinished, 0);
    return why;
}

int record_files_delete(record_files *f, const disk_key *key)
{
    char name[NAME_BYTES];
    name_of(key, name);
    if (unlinkat(f->dir, name, 0) == 0) return calls_sync(&f->io, f->dir);
    return errno == ENOENT ? 0 : errno;
}

/* ---- all files ------------------------------------------------------------------------------- */

static record_kind kind_of(const record_files *f, const disk_key *key, file_header *h,
                           bool *is_ours)
{
    int fd;
    struct stat st;
    *is_ours = false;
    if (open_record(f, key, &fd, &st) != 0) return RECORD_DAMAGED;
    *is_ours = true;
    int why = read_header(f, fd, &st, key, h);
    close(fd);
    return why == 0 ? RECORD_GOOD : why == EXDEV ? RECORD_FOREIGN : RECORD_DAMAGED;
}

status record_files_scan(record_files *f,
                         void (*found)(void *ctx, const disk_key *key, record_kind kind,
                                       const record_facts *facts),
                         void *ctx, error *err)
{
    int fd = openat(f->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int why = errno;
        if (fd >= 0) close(fd);
        return error_set(err, STATUS_IO, "%s: %s", f->folder, strerror(why));
    }
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        disk_key key;
        file_header h = {.version = 0};
        bool is_ours;
        if (!key_of_name(entry->d_name, &key)) continue;
        record_kind kind = kind_of(f, &key, &h, &is_ours);
        if (is_ours) found(ctx, &key, kind, &h.facts);
    }
    closedir(dir);
    return STATUS_IS_OK;
}

/* The folder that the records are in: the store's own, not a link to another. */
static status open_folder(record_files *f, const char *dir, error *err)
{
    struct stat st;
    int parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return error_set(err, STATUS_IO, "%s: %s", dir, strerror(errno));
    int why = mkdirat(parent, f->folder, 0700) != 0 && errno != EEXIST ? errno : 0;
    if (!why) f->dir = openat(parent, f->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (!why && f->dir < 0) why = errno;
    close(parent);
    if (!why && fstat(f->dir, &st) != 0) why = errno;
    if (why) return error_set(err, STATUS_IO, "%s/%s: %s", dir, f->folder, strerror(why));
    if (st.st_uid != geteuid())
        return error_set(err, STATUS_IO, "%s/%s: the directory belongs to another user", dir,
                         f->folder);
    if (fchmod(f->dir, 0700) != 0)
        return error_set(err, STATUS_IO, "%s/%s: cannot be given the mode 0700: %s", dir, f->folder,
                         strerror(errno));
    return STATUS_IS_OK;
}

status record_files_open(record_files *f, const disk_records_options *o, error *err)
{
    *f = (record_files){.dir = -1,
                        .folder = o->folder ? o->folder : "sessions",
                        .identity = o->identity,
                        .io = o->io ? *o->io : calls_system};
    return open_folder(f, o->dir, err);
}

void record_files_close(record_files *f)
{
    if (f->dir >= 0) close(f->dir);
}
