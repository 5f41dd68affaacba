/* Writes a zip from front to back: files are stored without compression, and followed by their
 * sizes and checksums (private to rpc/services). */
#ifndef RPC_SERVICES_ZIP_H
#define RPC_SERVICES_ZIP_H

#include "base/base.h"

enum { ZIP_FILES_MAX = 16, ZIP_NAME_BYTES_MAX = 63 };

typedef struct zip_file {
    char name[ZIP_NAME_BYTES_MAX + 1];
    uint32_t crc, bytes, offset; // offset: of its header in the zip
} zip_file;

typedef struct zip {
    zip_file files[ZIP_FILES_MAX];
    uint32_t n_files;
    uint64_t bytes; // written so far
} zip;

/* Each call appends to out. A file is one begin, any number of adds, and one end; zip_finish comes
 * after all files. Names have at most ZIP_NAME_BYTES_MAX bytes, there are at most ZIP_FILES_MAX
 * files, and the zip is smaller than 4 GiB. */
void zip_begin(zip *z, const char *name, strbuf *out);
void zip_add(zip *z, const void *data, size_t n, strbuf *out);
void zip_end(zip *z, strbuf *out);
void zip_finish(zip *z, strbuf *out);

#endif
