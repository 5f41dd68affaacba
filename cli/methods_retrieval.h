/* The retrieval methods as `octavo methods` prints them. */
#ifndef CLI_METHODS_RETRIEVAL_H
#define CLI_METHODS_RETRIEVAL_H

#include "paged_kv/retrieval/retrieval.h"

/* The table of all of them. */
void methods_put_retrievals(strbuf *out);
/* One in full, as text or as a JSON array of one object. */
void methods_put_retrieval(strbuf *out, const retrieval_preset *preset, bool json);

#endif
