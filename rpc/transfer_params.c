/* vLLM's kv_transfer_params of an answer. */
#include "rpc/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void service_engine_id(const service *s, char id[SERVICE_ENGINE_ID_BYTES])
{
    snprintf(id, SERVICE_ENGINE_ID_BYTES, "%016" PRIx64, hash_mix64(s->id_salt));
}

/* The names of vLLM's NixlConnector, which routers pass on as they are. What is held has no numbers
 * of blocks: the peer asks for it by remote_request_id. */
static void put_held(const service *s, const engine_transfer *t, strbuf *out)
{
    char engine_id[SERVICE_ENGINE_ID_BYTES];
    service_engine_id(s, engine_id);
    strbuf_printf(out,
                  "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[],"
                  "\"remote_engine_id\":\"%s\",\"remote_request_id\":\"%s\",\"remote_host\":",
                  engine_id, t->id);
    strbuf_json_string(out, t->host, strlen(t->host));
    strbuf_printf(
        out, ",\"remote_port\":%u,\"tp_size\":1,\"remote_num_tokens\":%u,\"bytes\":%" PRIu64 "}",
        t->port, t->tokens, t->bytes);
}

void service_put_transfer(const service *s, const engine_transfer *t, strbuf *out)
{
    if (t->held) {
        put_held(s, t, out);
        return;
    }
    strbuf_puts(out, "{\"do_remote_prefill\":false,\"do_remote_decode\":false,\"note\":");
    const char *note = t->received ? "fetched from another server" : t->note;
    strbuf_json_string(out, note, strlen(note));
    strbuf_printf(out, ",\"bytes\":%" PRIu64 "}", t->bytes);
}
