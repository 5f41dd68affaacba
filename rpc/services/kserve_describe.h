/* KServe's facts about server and model, for gRPC and HTTP (private to rpc/). */
#ifndef RPC_SERVICES_KSERVE_DESCRIBE_H
#define RPC_SERVICES_KSERVE_DESCRIBE_H

#include "proto/proto.h"
#include "rpc/service.h"

/* Gets a message that is valid during the call. */
typedef void (*kserve_tell)(void *ctx, const ProtobufCMessage *message);

/* Which model a request names. */
typedef struct kserve_model {
    ProtobufCBinaryData name, version; // empty = the first one, its only version
} kserve_model;

/* Makes a description and tells it. STATUS_NOT_FOUND: there is no such model or version. */
typedef status (*kserve_describe)(service *s, const kserve_model *which, kserve_tell tell,
                                  void *ctx, error *err);

status kserve_describe_server(service *s, const kserve_model *which, kserve_tell tell, void *ctx,
                              error *err);
status kserve_describe_model(service *s, const kserve_model *which, kserve_tell tell, void *ctx,
                             error *err);
status kserve_describe_config(service *s, const kserve_model *which, kserve_tell tell, void *ctx,
                              error *err);
/* Without a name, of every served name. */
status kserve_describe_statistics(service *s, const kserve_model *which, kserve_tell tell,
                                  void *ctx, error *err);
/* All models, or only those that are ready. */
status kserve_describe_index(service *s, bool ready, kserve_tell tell, void *ctx, error *err);

#endif
