/* Looks up files, symbols and imports in a serialised FileDescriptorSet, without a copy. The bytes
 * are not trusted: a set that is cut or malformed is refused, or lookups in it find nothing. */
#ifndef RPC_GRPC_DESCRIPTORS_H
#define RPC_GRPC_DESCRIPTORS_H

#include "base/base.h"

enum { DESCRIPTOR_FILES_MAX = 64 };

typedef struct byte_range {
    const uint8_t *data;
    size_t size;
} byte_range;

typedef struct descriptor_set {
    byte_range files[DESCRIPTOR_FILES_MAX]; // FileDescriptorProtos
    size_t n_files;
} descriptor_set;

/* *set borrows the bytes. STATUS_CORRUPT, or STATUS_LIMIT for too many files. */
status descriptor_set_open(byte_range bytes, descriptor_set *set);
/* The index of the file with this name, or n_files. */
size_t descriptor_set_file(const descriptor_set *set, byte_range name);
/* The index of the file that declares this message, enum, service or method (fully qualified,
 * without a leading dot), or n_files. */
size_t descriptor_set_symbol(const descriptor_set *set, byte_range name);
/* A bit for the file and for each file that it imports, directly or not. Imports that the set does
 * not hold are left out. */
uint64_t descriptor_set_closure(const descriptor_set *set, size_t file);

#endif
