/* Opens the stores on disk of `octavo serve`: blocks of the prefix cache, sessions, and embeddings
 * of method reform. */
#include "cli/serve.h"

#include <stdio.h>
#include <string.h>

static void on_disk_trouble(void *log, const char *text)
{
    rpc_log_note(log, "warning", "disk", text);
}

/* A server that shares prefixes in another way starts with no blocks: those that were asked without
 * a key are not for keys, nor those of all keys for a single one, nor the reverse. */
static uint64_t disk_identity(const serve_setup *s, const backend_info *info)
{
    const uint64_t parts[] = {info->block_identity, serve_sharing_of(s->flags)};
    return hash_bytes(OCTAVO_VERSION, sizeof OCTAVO_VERSION, hash_bytes(parts, sizeof parts, 0));
}

/* Bytes of the disk that embeddings of sessions may take, where requests may leave some. */
static uint64_t embeddings_share(const serve_setup *s)
{
    enum { EMBEDDINGS_PART = 4 };
    bool has = s->model->embeds.n > 0 && s->retention->max_sessions > 0;
    return has ? s->flags->disk_size / EMBEDDINGS_PART : 0;
}

/* Another server's folder is refused. With a folder that cannot be used otherwise, such as one on a
 * disk that has become read-only, the server starts without. */
static status open_blocks(const serve_setup *s, disk_cache **out, error *err)
{
    char text[sizeof err->text + 64];
    const backend_info *info = s->model->backend.ops->info(s->model->backend.ctx);
    if (!s->flags->disk_cache) return STATUS_IS_OK;
    if (s->model_flags->no_prefix_cache)
        return error_set(err, STATUS_INVALID,
                         "--disk-cache: --no-prefix-cache leaves nothing to keep");
    if (s->model_flags->kv_disk_size) /* workers may have --kv-disk of their own */
        return error_set(err, STATUS_UNSUPPORTED,
                         "--disk-cache: cannot go with --kv-disk, whose pages are on disk already");
    if (info->block_bytes == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--disk-cache: needs ranks on CPUs (--device cpu), --kv-dtype other than "
                         "int4 and int2, and pages of at most 32 MiB at each worker");
    const disk_options o = {.dir = s->flags->disk_cache,
                            .bytes = s->flags->disk_size - embeddings_share(s),
                            .block_bytes = info->block_bytes,
                            .identity = disk_identity(s, info),
                            .on_trouble = on_disk_trouble,
                            .on_trouble_ctx = s->log};
    status st = disk_open(&o, out, err);
    if (!status_ok(st)) error_prefix(err, "--disk-cache");
    if (st.code != STATUS_IO) return st;
    snprintf(text, sizeof text, "%s; the prefix cache goes on without disk", err->text);
    on_disk_trouble(s->log, text);
    return STATUS_IS_OK;
}

/* A session that pages were taken from under pressure is made again under the same policy only. */
static uint64_t sessions_identity(const serve_setup *s)
{
    const backend_info *info = s->model->backend.ops->info(s->model->backend.ctx);
    const char *pressure = s->retention->pressure ? s->retention->pressure : "";
    return hash_bytes(pressure, strlen(pressure), disk_identity(s, info));
}

/* Embeddings by other heads, or by the same heads of another model, are of no use. */
static uint64_t embeddings_identity(const serve_setup *s)
{
    const embed_choice *c = &s->model->embeds;
    uint64_t hash = disk_identity(s, s->model->backend.ops->info(s->model->backend.ctx));
    for (uint32_t i = 0; i < c->n; i++) {
        const uint32_t head[] = {c->heads[i].layer, c->heads[i].kind, c->heads[i].head};
        hash = hash_bytes(head, sizeof head, hash);
    }
    return hash;
}

static status open_records(const serve_setup *s, disk_records_options o, disk_records **out,
                           error *err)
{
    char text[sizeof err->text + 64];
    o.dir = s->flags->disk_cache;
    o.most = s->retention->max_sessions;
    o.ttl_us = (int64_t)s->retention->session_ttl_s * 1000000;
    o.on_trouble = on_disk_trouble;
    o.on_trouble_ctx = s->log;
    status st = disk_records_open(&o, out, err);
    if (!status_ok(st)) error_prefix(err, "--disk-cache");
    if (st.code != STATUS_IO) return st;
    snprintf(text, sizeof text, "%s; %s are kept in memory alone", err->text, o.folder);
    on_disk_trouble(s->log, text);
    return STATUS_IS_OK;
}

/* Sessions lie beside the blocks that they are made of, and embeddings of their texts beside
 * both. */
static status open_sessions(const serve_setup *s, serve_stores *out, error *err)
{
    if (!out->blocks || s->retention->max_sessions == 0) return STATUS_IS_OK;
    const disk_records_options sessions = {
        .folder = "sessions", .one = "a session", .identity = sessions_identity(s)};
    const disk_records_options embeddings = {.folder = "embeddings",
                                             .one = "an embedded text",
                                             .identity = embeddings_identity(s),
                                             .bytes = embeddings_share(s)};
    RETURN_IF_ERROR(open_records(s, sessions, &out->sessions, err));
    return embeddings.bytes ? open_records(s, embeddings, &out->embeddings, err) : STATUS_IS_OK;
}

status serve_open_stores(const serve_setup *setup, serve_stores *out, error *err)
{
    RETURN_IF_ERROR(open_blocks(setup, &out->blocks, err));
    return open_sessions(setup, out, err);
}

void serve_close_stores(serve_stores *s)
{
    disk_records_close(s->sessions);
    disk_records_close(s->embeddings);
    disk_close(s->blocks);
}
