#include "text/tokenizer/added_tokens.h"

#include "text/tokenizer/map.h"
#include "text/tokenizer/unicode.h"

#include <string.h>

#define ROOT 0u

struct tok_added_node {
    uint32_t child, sibling; /* TOK_NONE: none */
    uint32_t fail;           /* node of the longest proper suffix */
    uint32_t depth;
    uint32_t token; /* index of the pattern that ends here, or TOK_NONE */
    uint32_t
        found; /* the node of the longest pattern that is a suffix of this one, itself included */
    uint8_t byte;
};

static uint32_t child_of(const tok_added_set *set, uint32_t node, uint8_t byte)
{
    uint32_t child = set->nodes[node].child;
    while (child != TOK_NONE && set->nodes[child].byte != byte) child = set->nodes[child].sibling;
    return child;
}

static void insert_token(tok_added_set *set, uint32_t token)
{
    const tok_added_token *t = &set->tokens[token];
    uint32_t node = ROOT;
    for (uint32_t i = 0; i < t->length; i++) {
        uint8_t byte = (uint8_t)t->pattern[i];
        uint32_t child = child_of(set, node, byte);
        if (child == TOK_NONE) {
            child = (uint32_t)set->n_nodes++;
            set->nodes[child] = (tok_added_node){.child = TOK_NONE,
                                                 .sibling = set->nodes[node].child,
                                                 .depth = i + 1,
                                                 .token = TOK_NONE,
                                                 .byte = byte};
            set->nodes[node].child = child;
        }
        node = child;
    }
    if (set->nodes[node].token == TOK_NONE) set->nodes[node].token = token;
    set->first[(uint8_t)t->pattern[0]] = true;
}

/* The node that the automaton enters from `node` on a byte. */
static uint32_t next_node(const tok_added_set *set, uint32_t node, uint8_t byte)
{
    for (;;) {
        uint32_t child = child_of(set, node, byte);
        if (child != TOK_NONE) return child;
        if (node == ROOT) return ROOT;
        node = set->nodes[node].fail;
    }
}

/* Sets the fail and found links, breadth first. */
static bool link_nodes(tok_added_set *set)
{
    uint32_t *queue = alloc_resize(NULL, NULL, set->n_nodes, sizeof *queue);
    if (!queue) return false;
    size_t head = 0, tail = 0;
    queue[tail++] = ROOT;
    while (head < tail) {
        uint32_t at = queue[head++];
        for (uint32_t c = set->nodes[at].child; c != TOK_NONE; c = set->nodes[c].sibling) {
            tok_added_node *node = &set->nodes[c];
            node->fail = at == ROOT ? ROOT : next_node(set, set->nodes[at].fail, node->byte);
            node->found = node->token != TOK_NONE ? c : set->nodes[node->fail].found;
            queue[tail++] = c;
        }
    }
    alloc_free(NULL, queue);
    return true;
}

status tok_added_set_create(tok_added_set *set, const tok_added_token *tokens, size_t n_tokens)
{
    *set = (tok_added_set){.tokens = tokens, .n_tokens = n_tokens};
    if (n_tokens == 0) return STATUS_IS_OK;
    size_t bytes = 1;
    for (size_t i = 0; i < n_tokens; i++) bytes += tokens[i].length;
    set->nodes = alloc_resize(NULL, NULL, bytes, sizeof *set->nodes);
    if (!set->nodes) return status_make(STATUS_NO_MEMORY, NULL);
    set->nodes[ROOT] = (tok_added_node){
        .child = TOK_NONE, .sibling = TOK_NONE, .token = TOK_NONE, .found = TOK_NONE};
    set->n_nodes = 1;
    for (size_t i = 0; i < n_tokens; i++) insert_token(set, (uint32_t)i);
    return link_nodes(set) ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

void tok_added_set_destroy(tok_added_set *set)
{
    alloc_free(NULL, set->nodes);
    set->nodes = NULL;
}

/* The leftmost-longest match in text[from..n), as its token, or TOK_NONE. */
static uint32_t search(const tok_added_set *set, const uint8_t *text, size_t n, size_t from,
                       size_t *start, size_t *end)
{
    uint32_t node = ROOT, best = TOK_NONE;
    for (size_t i = from; i < n; i++) {
        if (node == ROOT && !set->first[text[i]]) {
            if (best != TOK_NONE) break;
            continue;
        }
        node = next_node(set, node, text[i]);
        /* Every further match starts behind the best match. */
        if (best != TOK_NONE && i + 1 - set->nodes[node].depth > *start) break;
        uint32_t found = set->nodes[node].found;
        if (found == TOK_NONE) continue;
        size_t found_start = i + 1 - set->nodes[found].depth;
        if (best != TOK_NONE && found_start > *start) continue;
        best = set->nodes[found].token;
        *start = found_start;
        *end = i + 1;
    }
    return best;
}

static bool is_word(uint32_t cp) { return tok_unicode_class(cp) & UNICODE_WORD; }

static bool stands_alone(const uint8_t *text, size_t n, size_t start, size_t end)
{
    unsigned length;
    if (start > 0 && is_word(tok_unicode_read_before(text + start))) return false;
    return end == n || !is_word(tok_unicode_read(text + end, &length));
}

/* The start of the white space that ends at `end`, not before `from`. */
static size_t space_before(const uint8_t *text, size_t from, size_t end)
{
    while (end > from) {
        uint8_t cp_bytes[4];
        uint32_t cp = tok_unicode_read_before(text + end);
        if (!(tok_unicode_class(cp) & UNICODE_SPACE)) break;
        end -= utf8_encode(cp, cp_bytes);
    }
    return end;
}

static size_t space_after(const uint8_t *text, size_t n, size_t from)
{
    while (from < n) {
        unsigned length;
        if (!(tok_unicode_class(tok_unicode_read(text + from, &length)) & UNICODE_SPACE)) break;
        from += length;
    }
    return from;
}

status tok_added_set_split(const tok_added_set *set, const uint8_t *text, size_t n,
                           tok_added_visit visit, void *ctx)
{
    size_t done = 0;      /* text before this has been visited */
    size_t space_end = 0; /* the end of the white space that rstrip last walked over */
    size_t start = 0, end = 0, from = 0;
    while (set->nodes && from < n) {
        uint32_t match = search(set, text, n, from, &start, &end);
        if (match == TOK_NONE) break;
        from = end;
        const tok_added_token *token = &set->tokens[match];
        if (token->single_word && !stands_alone(text, n, start, end)) continue;
        /* An earlier rstrip may have taken the start of this match, or all of it. The library
         * continues from this match's end all the same, so this code does too. */
        if (token->lstrip) start = start > done ? space_before(text, done, start) : done;
        if (token->rstrip) {
            if (end >= space_end) space_end = space_after(text, n, end);
            end = space_end;
        }
        if (done < start) RETURN_IF_ERROR(visit(ctx, text + done, start - done, TOK_NONE));
        if (start < end) RETURN_IF_ERROR(visit(ctx, text + start, end - start, token->id));
        done = end;
    }
    return done < n ? visit(ctx, text + done, n - done, TOK_NONE) : STATUS_IS_OK;
}
