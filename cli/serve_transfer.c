/* Prompts that go from one server to another: what the flags of `octavo serve` make of it. */
#include "cli/serve.h"

#include <string.h>

status serve_open_transfer(const serve_flags *flags, const backend_info *info, uint64_t bytes,
                           transfer **out, error *err)
{
    const arg_list *peers = &flags->transfer_peers;
    *out = NULL;
    if (!flags->transfer_listen && peers->n == 0) return STATUS_IS_OK;
    if (info->kv_identity == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--kv-transfer-%s: needs K and V in memory that steps read (neither "
                         "--kv-disk nor --kv-host), and --kv-dtype other than int4 and int2",
                         flags->transfer_listen ? "listen" : "peers");
    const uint64_t parts[] = {info->kv_kind, info->identity};
    const transfer_options o = {
        .listen = flags->transfer_listen,
        .peers = peers->items,
        .n_peers = (uint32_t)peers->n,
        .identity =
            hash_bytes(OCTAVO_VERSION, strlen(OCTAVO_VERSION), hash_bytes(parts, sizeof parts, 0)),
        .bytes = bytes,
        .ttl_us = (int64_t)flags->transfer_ttl_s * 1000000,
        .timeout_us = (int64_t)flags->transfer_timeout_s * 1000000,
    };
    return transfer_open(&o, out, err);
}

const char *serve_kv_role(const serve_flags *flags)
{
    if (flags->transfer_peers.n == 0) return flags->transfer_listen ? "kv_producer" : NULL;
    return flags->transfer_listen ? "kv_both" : "kv_consumer";
}
