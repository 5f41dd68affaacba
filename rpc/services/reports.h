/* Retention reports of a call's choices, for services whose messages have no field for them. They
 * go out as the trailing metadata octavo-report, a JSON array in the order of the choices (private
 * to rpc/services). */
#ifndef RPC_SERVICES_REPORTS_H
#define RPC_SERVICES_REPORTS_H

#include "rpc/grpc/grpc.h"

/* By default gRPC clients refuse calls whose metadata are larger than 8 KiB. */
enum { REPORTS_BYTES_MAX = 6144 };

typedef struct reports {
    retention_report *list; // [n]; method NULL = no report
    uint32_t n, n_given;
} reports;

/* False when memory is out. */
bool reports_init(reports *r, uint32_t n);
void reports_destroy(reports *r);
/* Keeps a copy of a choice's report, unless it is NULL. False when memory is out. */
bool reports_keep(reports *r, uint32_t index, const retention_report *report);
/* Appends the array in at most max_bytes: first lists of kept positions are left out
 * ("kept": null), then whole reports (null). */
void reports_json(const reports *r, size_t max_bytes, strbuf *out);
/* Adds the trailer, unless no choice has a report. False when memory is out: the call must then
 * fail, so that the client does not miss the reports unknowingly. */
bool reports_send(rpc_call *c, const reports *r);

#endif
