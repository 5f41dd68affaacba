/* KServe's inference over HTTP: a body that becomes the request that gRPC has, and its answer
 * (private to rpc/). */
#ifndef RPC_SERVICES_KSERVE_HTTP_H
#define RPC_SERVICES_KSERVE_HTTP_H

#include "rpc/openai/openai.h"
#include "rpc/services/kserve_json.h"

/* An answer in the making. */
typedef struct kserve_answer kserve_answer;

/* Starts the requests of a body. The id of *o is that of requests without one. *started may be
 * set after an error, too: it must be released. */
status kserve_http_start(service *s, const kserve_body *body, const generation_options *o,
                         kserve_answer **out, generation **started, error *err);
void kserve_answer_destroy(kserve_answer *a);
void kserve_answer_take(kserve_answer *a, const generation_output *o);
/* Appends the whole answer. */
void kserve_answer_finish(kserve_answer *a, strbuf *out);
/* Bytes of JSON in an answer that has bytes of tensors behind it; 0 = it is JSON alone. */
size_t kserve_answer_json_bytes(const kserve_answer *a);
/* Why there is no answer; NULL = there is. */
const openai_error *kserve_answer_error(const kserve_answer *a);

#endif
