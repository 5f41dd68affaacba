/* A KV event as the payload of a message. */
#include "rpc/zmq/internal.h"

#include <msgpack.h>
#include <string.h>

static void put_text(msgpack_packer *p, const char *text)
{
    msgpack_pack_str(p, strlen(text));
    msgpack_pack_str_body(p, text, strlen(text));
}

static void put_key_nil(msgpack_packer *p, const char *key)
{
    put_text(p, key);
    msgpack_pack_nil(p);
}

static void put_hashes(msgpack_packer *p, const kv_event *event)
{
    put_text(p, "block_hashes");
    msgpack_pack_array(p, 1);
    msgpack_pack_uint64(p, event->hash);
}

/* A first block has the parent 0, which readers know as none. "medium" is none as well: readers
 * take that for the memory that serves requests, whatever its kind. */
static void put_stored(msgpack_packer *p, const kv_event *event, uint32_t page_tokens)
{
    msgpack_pack_map(p, 8);
    put_text(p, "type");
    put_text(p, "BlockStored");
    put_hashes(p, event);
    put_text(p, "parent_block_hash");
    if (event->parent) msgpack_pack_uint64(p, event->parent);
    else msgpack_pack_nil(p);
    put_text(p, "token_ids");
    msgpack_pack_array(p, page_tokens);
    for (uint32_t i = 0; i < page_tokens; i++) msgpack_pack_uint32(p, event->tokens[i]);
    put_text(p, "block_size");
    msgpack_pack_uint32(p, page_tokens);
    put_key_nil(p, "lora_id");
    put_key_nil(p, "medium");
    put_key_nil(p, "lora_name");
}

static void put_removed(msgpack_packer *p, const kv_event *event)
{
    msgpack_pack_map(p, 3);
    put_text(p, "type");
    put_text(p, "BlockRemoved");
    put_hashes(p, event);
    put_key_nil(p, "medium");
}

static void put_cleared(msgpack_packer *p)
{
    msgpack_pack_map(p, 1);
    put_text(p, "type");
    put_text(p, "AllBlocksCleared");
}

static int write_bytes(void *out, const char *bytes, size_t n)
{
    strbuf_append(out, bytes, n);
    return 0;
}

bool message_pack(const kv_event *event, uint32_t page_tokens, strbuf *out)
{
    msgpack_packer p;
    msgpack_packer_init(&p, out, write_bytes);
    bool told = event->kind != KV_STORED || !event->hidden;
    msgpack_pack_array(&p, 3);
    msgpack_pack_double(&p, event->time);
    msgpack_pack_array(&p, told ? 1 : 0);
    if (told && event->kind == KV_STORED) put_stored(&p, event, page_tokens);
    if (event->kind == KV_REMOVED) put_removed(&p, event);
    if (event->kind == KV_CLEARED) put_cleared(&p);
    msgpack_pack_int(&p, 0); // the data parallel rank
    return !out->failed;
}

void message_put_sequence(uint64_t number, uint8_t out[SEQUENCE_BYTES])
{
    for (int i = 0; i < SEQUENCE_BYTES; i++) out[i] = (uint8_t)((number - 1) >> (56 - 8 * i));
}

uint64_t message_get_sequence(const uint8_t bytes[SEQUENCE_BYTES])
{
    uint64_t n = 0;
    for (int i = 0; i < SEQUENCE_BYTES; i++) n = n << 8 | bytes[i];
    return n + 1;
}
