/* The gRPC services (private to rpc/): each translates between its messages and the shared core.
 * The request_of functions are pure, and the fuzzers call them. */
#ifndef RPC_SERVICES_SERVICES_H
#define RPC_SERVICES_SERVICES_H

#include "proto/proto.h"
#include "rpc/grpc/grpc.h"

extern const rpc_service octavo_v1_service;   // octavo.v1.Inference
extern const rpc_service vllm_engine_service; // vllm.grpc.engine.VllmEngine
extern const rpc_service kserve_service;      // inference.GRPCInferenceService

/* Fill *out (initialised here; destroy it even after an error). Errors name the field. */
status octavo_v1_request_of(const service *s, const Octavo__V1__GenerateRequest *m,
                            engine_request *out, error *err);
/* retention: the value of the metadata octavo-retention, or NULL. */
status vllm_request_of(const service *s, const Vllm__Grpc__Engine__GenerateRequest *m,
                       const char *retention, size_t n_retention, engine_request *out, error *err);
/* Fills *out for the first of the request's prompts. */
status kserve_request_of(const service *s, const Inference__ModelInferRequest *m,
                         engine_request *out, error *err);

#endif
