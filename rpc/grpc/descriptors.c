#include "rpc/grpc/descriptors.h"

#include <string.h>

/* How deep messages may be declared inside messages. */
enum { NESTING_MAX = 16 };

/* Field numbers of descriptor.proto. */
enum { SET_FILE = 1 };
enum { FILE_NAME = 1, FILE_PACKAGE = 2, FILE_DEPENDENCY = 3 };
enum { FILE_MESSAGE = 4, FILE_ENUM = 5, FILE_SERVICE = 6 };
enum { ANY_NAME = 1 };
enum { MESSAGE_NESTED = 3, MESSAGE_ENUM = 4 };
enum { SERVICE_METHOD = 2 };

/* ---- the wire -------------------------------------------------------------------------------- */

typedef struct wire_field {
    uint32_t number;
    bool has_bytes; // length-delimited
    byte_range bytes;
} wire_field;

static bool take_varint(byte_range *in, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && in->size > 0; shift += 7) {
        uint8_t byte = *in->data++;
        in->size--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool take_bytes(byte_range *in, uint64_t n, byte_range *out)
{
    if (n > in->size) return false;
    *out = (byte_range){in->data, n};
    in->data += n;
    in->size -= n;
    return true;
}

/* Takes the next field. False at the end, and at malformed bytes (then in->size > 0). */
static bool take_field(byte_range *in, wire_field *f)
{
    byte_range rest = *in, skipped;
    uint64_t tag, value;
    if (!take_varint(&rest, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX >> 3) return false;
    *f = (wire_field){.number = (uint32_t)(tag >> 3)};
    bool ok = false;
    switch (tag & 7) {
    case 0: ok = take_varint(&rest, &value); break;
    case 1: ok = take_bytes(&rest, 8, &skipped); break;
    case 2:
        f->has_bytes = true;
        ok = take_varint(&rest, &value) && take_bytes(&rest, value, &f->bytes);
        break;
    case 5: ok = take_bytes(&rest, 4, &skipped); break;
    default: break; // groups: proto3 has none
    }
    if (ok) *in = rest;
    return ok;
}

/* Takes the next field that has this number and holds bytes. */
static bool take_field_of(byte_range *in, uint32_t number, byte_range *out)
{
    for (wire_field f; take_field(in, &f);) {
        if (f.number != number || !f.has_bytes) continue;
        *out = f.bytes;
        return true;
    }
    return false;
}

static byte_range first_field_of(byte_range in, uint32_t number)
{
    byte_range out = {0};
    return take_field_of(&in, number, &out) ? out : (byte_range){0};
}

static bool is_same_range(byte_range a, byte_range b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* ---- symbols --------------------------------------------------------------------------------- */

/* Takes "name" or "name." off the front of a symbol. */
static bool take_name(byte_range *symbol, byte_range name)
{
    if (name.size == 0 || symbol->size < name.size ||
        memcmp(symbol->data, name.data, name.size) != 0)
        return false;
    size_t n = name.size;
    if (symbol->size > n) {
        if (symbol->data[n] != '.') return false;
        n++;
        if (symbol->size == n) return false;
    }
    symbol->data += n;
    symbol->size -= n;
    return true;
}

/* True when one of the fields `number` of `in` declares exactly this name. */
static bool declares_plain(byte_range in, uint32_t number, byte_range symbol)
{
    for (byte_range item; take_field_of(&in, number, &item);)
        if (symbol.size > 0 && is_same_range(first_field_of(item, ANY_NAME), symbol)) return true;
    return false;
}

static bool declares_in_service(byte_range in, byte_range symbol)
{
    for (byte_range item; take_field_of(&in, FILE_SERVICE, &item);) {
        byte_range rest = symbol;
        if (!take_name(&rest, first_field_of(item, ANY_NAME))) continue;
        if (rest.size == 0 || declares_plain(item, SERVICE_METHOD, rest)) return true;
    }
    return false;
}

static bool declares_in_message(byte_range in, uint32_t number, byte_range symbol, unsigned depth)
{
    for (byte_range item; take_field_of(&in, number, &item);) {
        byte_range rest = symbol;
        if (!take_name(&rest, first_field_of(item, ANY_NAME))) continue;
        if (rest.size == 0 || declares_plain(item, MESSAGE_ENUM, rest)) return true;
        if (depth < NESTING_MAX && declares_in_message(item, MESSAGE_NESTED, rest, depth + 1))
            return true;
    }
    return false;
}

static bool file_declares(byte_range file, byte_range symbol)
{
    byte_range package = first_field_of(file, FILE_PACKAGE);
    if (package.size > 0 && (!take_name(&symbol, package) || symbol.size == 0)) return false;
    return declares_plain(file, FILE_ENUM, symbol) || declares_in_service(file, symbol) ||
           declares_in_message(file, FILE_MESSAGE, symbol, 0);
}

/* ---- the set --------------------------------------------------------------------------------- */

status descriptor_set_open(byte_range bytes, descriptor_set *set)
{
    *set = (descriptor_set){0};
    for (wire_field f; take_field(&bytes, &f);) {
        if (f.number != SET_FILE || !f.has_bytes) continue;
        if (set->n_files == DESCRIPTOR_FILES_MAX)
            return status_make(STATUS_LIMIT, "too many descriptor files");
        set->files[set->n_files++] = f.bytes;
    }
    return bytes.size == 0 ? STATUS_IS_OK : status_make(STATUS_CORRUPT, "descriptor set");
}

size_t descriptor_set_file(const descriptor_set *set, byte_range name)
{
    size_t i = 0;
    while (i < set->n_files &&
           !(name.size > 0 && is_same_range(first_field_of(set->files[i], FILE_NAME), name)))
        i++;
    return i;
}

size_t descriptor_set_symbol(const descriptor_set *set, byte_range name)
{
    size_t i = 0;
    while (i < set->n_files && !(name.size > 0 && file_declares(set->files[i], name))) i++;
    return i;
}

uint64_t descriptor_set_closure(const descriptor_set *set, size_t file)
{
    uint64_t found = (uint64_t)1 << file, done = 0;
    while (found != done) {
        size_t i = (size_t)__builtin_ctzll(found & ~done);
        done |= (uint64_t)1 << i;
        byte_range in = set->files[i];
        for (byte_range name; take_field_of(&in, FILE_DEPENDENCY, &name);) {
            size_t next = descriptor_set_file(set, name);
            if (next < set->n_files) found |= (uint64_t)1 << next;
        }
    }
    return found;
}
