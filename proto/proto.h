/* proto: the messages of gRPC services and of traces as C structs, and the services' descriptors
 * for reflection.
 *
 * What     protobuf-c's code for the .proto files beside this header. A `string` of a .proto is
 *          bytes here (ProtobufCBinaryData, not NUL-terminated), so a NUL sent by a client cuts
 *          nothing off.
 * Owner    unpacked messages belong to the allocator they were unpacked with.
 * Threads  no state.
 * Units    as the .proto files say.
 * Errors   unpacking gives NULL for bytes that are malformed or do not fit the allocator. */
#ifndef PROTO_PROTO_H
#define PROTO_PROTO_H

#include "proto/google_rpc.pb-c.h"
#include "proto/health.pb-c.h"
#include "proto/kserve.pb-c.h"
#include "proto/octavo.pb-c.h"
#include "proto/otlp.pb-c.h"
#include "proto/reflection.pb-c.h"
#include "proto/reflection_v1alpha.pb-c.h"
#include "proto/smg_common.pb-c.h"
#include "proto/vllm_engine.pb-c.h"
#include "proto/worker.pb-c.h"

/* A serialised google.protobuf.FileDescriptorSet of the services' files. */
extern const unsigned char octavo_descriptors[], octavo_descriptors_end[];

#endif
