/* Reports of a call's choices, for services whose messages have no field for them. They go out as
 * trailing metadata, JSON arrays in the order of the choices: octavo-report has those of retention,
 * octavo-retrieval-report those of retrieval (private to rpc/services). */
#ifndef RPC_SERVICES_REPORTS_H
#define RPC_SERVICES_REPORTS_H

#include "rpc/grpc/grpc.h"

/* By default gRPC clients refuse calls whose metadata are larger than 8 KiB. */
enum { REPORTS_BYTES_MAX = 6144, READINGS_BYTES_MAX = 1536 };

typedef struct reports {
    retention_report *list;     // [n]; method NULL = no report
    retrieval_totals *readings; // [n]
    bool *has_reading;          // [n]
    uint32_t n, n_given, n_readings;
} reports;

/* False when memory is out. */
bool reports_init(reports *r, uint32_t n);
void reports_destroy(reports *r);
/* Keeps copies of the reports that a choice's last output has. False when memory is out. */
bool reports_keep(reports *r, uint32_t index, const engine_output *last);
/* Appends the array in at most max_bytes: first lists of kept positions are left out
 * ("kept": null), then whole reports (null). */
void reports_json(const reports *r, size_t max_bytes, strbuf *out);
/* The same of retrieval: whole reports are left out (null). */
void reports_readings_json(const reports *r, size_t max_bytes, strbuf *out);
/* Adds the trailers that some choice has a report for. False when memory is out: the call must then
 * fail, so that the client does not miss the reports unknowingly. */
bool reports_send(rpc_call *c, const reports *r);

#endif
