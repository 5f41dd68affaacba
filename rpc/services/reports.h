/* The retention reports of a call's choices, for contracts that have no field for them: trailing
 * metadata octavo-report, a JSON array in the order of the choices (private to rpc/services). */
#ifndef RPC_SERVICES_REPORTS_H
#define RPC_SERVICES_REPORTS_H

#include "rpc/grpc/grpc.h"

/* Clients refuse calls whose metadata are larger than 8 KiB, unless they are told otherwise. */
enum { REPORTS_BYTES_MAX = 6144 };

typedef struct reports {
    retention_report *list; // [n]; method NULL = no report
    uint32_t n, n_given;
} reports;

/* False when memory is out. */
bool reports_init(reports *r, uint32_t n);
void reports_destroy(reports *r);
/* Keeps a copy; NULL is none. False when memory is out. */
bool reports_keep(reports *r, uint32_t index, const retention_report *report);
/* Appends the array. What does not fit into max_bytes is left out, first lists of positions
 * ("kept": null), then whole reports (null). */
void reports_json(const reports *r, size_t max_bytes, strbuf *out);
/* Adds the trailer, unless no choice had a report. False when memory is out: the call must not end
 * as if nothing were missing. */
bool reports_send(rpc_call *c, const reports *r);

#endif
