/* Server reflection: gives the descriptors to clients that have no .proto. v1 and v1alpha have the
 * same messages on the wire, so v1's C messages serve both. */
#include "rpc/grpc/internal.h"

#include "proto/proto.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUESTION_BYTES_MAX = 4096 };

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

#define IS(what)       GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##what
#define RESPONSE(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##what

static void send_error(rpc_call *c, reflection_response *r, grpc_status_code code, const char *text)
{
    Grpc__Reflection__V1__ErrorResponse e = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    e.error_code = (int32_t)code;
    e.error_message = call_bytes(text, strlen(text));
    r->message_response_case = RESPONSE(ERROR_RESPONSE);
    r->error_response = &e;
    call_send(c, &r->base);
}

/* Sends the file, then the files that it imports. */
static void send_files(rpc_call *c, reflection_response *r, size_t file, const char *what)
{
    const descriptor_set *set = &call_front(c)->descriptors;
    ProtobufCBinaryData files[DESCRIPTOR_FILES_MAX];
    Grpc__Reflection__V1__FileDescriptorResponse f =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    if (file == set->n_files) {
        char text[64];
        snprintf(text, sizeof text, "%s: there is none of this name", what);
        send_error(c, r, GRPC_STATUS_NOT_FOUND, text);
        return;
    }
    uint64_t left = descriptor_set_closure(set, file);
    for (size_t i = file;; i = (size_t)__builtin_ctzll(left)) {
        files[f.n_file_descriptor_proto++] =
            (ProtobufCBinaryData){set->files[i].size, (uint8_t *)(uintptr_t)set->files[i].data};
        left &= ~((uint64_t)1 << i);
        if (!left) break;
    }
    f.file_descriptor_proto = files;
    r->message_response_case = RESPONSE(FILE_DESCRIPTOR_RESPONSE);
    r->file_descriptor_response = &f;
    call_send(c, &r->base);
}

static void send_services(rpc_call *c, reflection_response *r)
{
    size_t n;
    const rpc_service *const *services = grpc_front_services(call_front(c), &n);
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    Grpc__Reflection__V1__ServiceResponse *items = calloc(n, sizeof *items),
                                          **all = calloc(n, sizeof *all);
    if (!items || !all) {
        call_fail(c, status_make(STATUS_NO_MEMORY, NULL), NULL);
    } else {
        for (size_t i = 0; i < n; i++) {
            grpc__reflection__v1__service_response__init(&items[i]);
            items[i].name = call_bytes(services[i]->name, strlen(services[i]->name));
            all[i] = &items[i];
        }
        list.service = all;
        list.n_service = n;
        r->message_response_case = RESPONSE(LIST_SERVICES_RESPONSE);
        r->list_services_response = &list;
        call_send(c, &r->base);
    }
    free(items);
    free(all);
}

static byte_range range_of(ProtobufCBinaryData b) { return (byte_range){b.data, b.len}; }

static void answer_question(rpc_call *c, const ProtobufCMessage *m)
{
    const reflection_request *q = (const reflection_request *)m;
    const descriptor_set *set = &call_front(c)->descriptors;
    reflection_response r = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    if (protobuf_c_message_get_packed_size(m) > QUESTION_BYTES_MAX) { // the answer repeats it
        call_refuse(c, GRPC_STATUS_INVALID_ARGUMENT, "request: longer than a name needs");
        return;
    }
    r.valid_host = q->host;
    r.original_request = (reflection_request *)(uintptr_t)q;
    switch (q->message_request_case) {
    case IS(FILE_BY_FILENAME):
        send_files(c, &r, descriptor_set_file(set, range_of(q->file_by_filename)),
                   "file_by_filename");
        break;
    case IS(FILE_CONTAINING_SYMBOL):
        send_files(c, &r, descriptor_set_symbol(set, range_of(q->file_containing_symbol)),
                   "file_containing_symbol");
        break;
    case IS(LIST_SERVICES): send_services(c, &r); break;
    case IS(FILE_CONTAINING_EXTENSION):
    case IS(ALL_EXTENSION_NUMBERS_OF_TYPE):
        send_error(c, &r, GRPC_STATUS_NOT_FOUND, "there are no extensions");
        break;
    default:
        send_error(c, &r, GRPC_STATUS_INVALID_ARGUMENT, "message_request: one must be set");
        break;
    }
}

static void half_closed(rpc_call *c) { call_finish(c, GRPC_STATUS_OK, ""); }

/* Called when an answer has gone out: asks for the next question. */
static void receive_question(rpc_call *c) { call_receive(c); }

#define METHOD(name)                                                                               \
    {                                                                                              \
        .path = "/" name "/ServerReflectionInfo",                                                  \
        .input = &grpc__reflection__v1__server_reflection_request__descriptor,                     \
        .client_streams = true, .message = answer_question, .half_closed = half_closed,            \
        .writable = receive_question,                                                              \
    }

static const rpc_method v1 = METHOD("grpc.reflection.v1.ServerReflection");
static const rpc_method v1alpha = METHOD("grpc.reflection.v1alpha.ServerReflection");

const rpc_service reflection_service = {"grpc.reflection.v1.ServerReflection", &v1, 1};
const rpc_service reflection_v1alpha_service = {"grpc.reflection.v1alpha.ServerReflection",
                                                &v1alpha, 1};
