/* internal: what the parts of the grammar module share.
 *
 *   front ends (schema*.c, regex.c, gbnf.c)  ->  expressions (expr.c)  ->  one automaton for each
 *   rule (nfa.c, determine.c)  ->  the grammar (link.c)  ->  matcher.c, mask.c
 *
 * An expression is a number in a `build`. A build that failed (out of memory, over a bound, or a
 * source that is wrong) keeps its first error; every function then returns at once, and what it
 * returns is not used. */
#ifndef ENGINE_GRAMMAR_INTERNAL_H
#define ENGINE_GRAMMAR_INTERNAL_H

#include "base/sha256.h"
#include "engine/grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    REPEAT_MANY = UINT32_MAX, // the upper bound of a repetition without one
    STATES_MAX = 1 << 21,     // of a grammar
    EDGES_MAX = 1 << 23,
    RULE_STATES_MAX = 1 << 19,       // of a rule that is made deterministic
    RULE_WORK_MAX = 8 * 1000 * 1000, // operations that making a rule deterministic may take
    LANGUAGE_STATES_MAX = 1 << 16,   // of a language of strings (a pattern with its bounds)
    ITEMS_MAX = 1 << 12,             // readings of a text at one byte
    ITEMS_ALL_MAX = 1 << 23,         // readings that a matcher keeps, at all bytes: 128 MiB
    NONE = UINT32_MAX,
};
#define FUEL            ((int64_t)48 * 1000 * 1000) // elementary operations of one compilation
#define BUILD_BYTES_MAX ((size_t)200 << 20)

/* ---- expressions ----------------------------------------------------------------------------- */

typedef uint32_t expr;

typedef enum expr_kind {
    EXPR_NEVER,    // no text
    EXPR_EMPTY,    // the empty text
    EXPR_RANGE,    // one byte of a .. b
    EXPR_TEXT,     // bytes [a, a + b) of the build's texts
    EXPR_SEQ,      // children [a, a + b) of the build's lists, one after the other
    EXPR_ALT,      // one of them
    EXPR_REPEAT,   // a, b to c times
    EXPR_RULE,     // what rule a matches
    EXPR_LANGUAGE, // the texts of language a
    EXPR_GRAPH,    // paths from node 0 to node 1 along arcs [a, a + b) among c nodes
} expr_kind;

typedef struct expr_node {
    expr_kind kind;
    uint32_t a, b, c;
} expr_node;

typedef struct expr_arc {
    uint32_t from, to;
    expr label;
} expr_arc;

/* A deterministic automaton over bytes: state 0 is its start; state s has the edges
 * [first[s], first[s + 1]), by ascending bytes. */
typedef struct byte_edge {
    uint8_t lo, hi;
    uint32_t to;
} byte_edge;

typedef struct language {
    uint32_t n_states, n_edges;
    uint32_t *first;
    byte_edge *edges;
    uint8_t *ends; // [n_states]: whether a text may end there
} language;

typedef struct build_rule {
    const char *name; // for messages; may be NULL
    expr body;
    uint32_t min, max; // of a counted rule: how often `body`'s rule is repeated
    bool counted;
    bool defined;
    bool inlined; // its body stands in place of each call
} build_rule;

typedef struct build {
    arena mem, spare; // spare: memory between build_scratch and build_keep
    unsigned scratch; // calls of build_scratch that are open
    expr_node *nodes;
    uint32_t n_nodes, nodes_room;
    expr *lists;
    uint32_t n_lists, lists_room;
    char *texts;
    uint32_t n_texts, texts_room;
    expr_arc *arcs;
    uint32_t n_arcs, arcs_room;
    build_rule *rules;
    uint32_t n_rules, rules_room;
    language **languages;
    uint32_t n_languages, languages_room;
    int64_t fuel;
    status failure;
    error *err;
    bool compact;
    uint32_t json[16]; // rules of json_rules.c that are made, by their kind; NONE: not yet
} build;

void build_init(build *b, error *err);
void build_destroy(build *b);
bool build_ok(const build *b);
/* Keeps the first failure. */
void build_fail(build *b, status_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes n operations from the fuel; false (and a failure) when there are no more. */
bool build_work(build *b, uint64_t n);
void *build_alloc(build *b, size_t n, size_t size);
/* Between build_scratch and build_keep, memory comes from another arena; what is to stay is then
 * copied (build_copy), and build_forget frees the rest. In a call within such a call, all of it
 * stays until the outer one's build_forget. */
void build_scratch(build *b);
void build_keep(build *b);
void build_forget(build *b);
void *build_copy(build *b, const void *from, size_t n, size_t size);
/* Room for `more` elements behind n; the array may move. False when the build failed. */
bool build_room(build *b, void *array, uint32_t n, uint32_t more, uint32_t *room, size_t size);

expr expr_never(build *b);
expr expr_empty(build *b);
expr expr_range(build *b, uint8_t lo, uint8_t hi);
expr expr_text(build *b, const char *s, size_t n);
expr expr_words(build *b, const char *s); // a text that ends with NUL
expr expr_seq(build *b, const expr *list, uint32_t n);
expr expr_alt(build *b, const expr *list, uint32_t n);
expr expr_then(build *b, expr first, expr second);
expr expr_or(build *b, expr one, expr other);
expr expr_optional(build *b, expr e);
expr expr_repeat(build *b, expr e, uint32_t min, uint32_t max);
expr expr_rule(build *b, uint32_t rule);
expr expr_language(build *b, language *l);
expr expr_graph(build *b, const expr_arc *arcs, uint32_t n, uint32_t n_nodes);

/* A growing list of expressions or arcs while a front end reads; its memory is the build's. */
typedef struct expr_list {
    expr *items;
    uint32_t n, room;
} expr_list;
typedef struct arc_list {
    expr_arc *items;
    uint32_t n, room;
} arc_list;
void expr_list_add(build *b, expr_list *l, expr e);
void arc_list_add(build *b, arc_list *l, uint32_t from, uint32_t to, expr label);

/* A rule without a body yet. */
uint32_t rule_create(build *b, const char *name);
void rule_define(build *b, uint32_t rule, expr body);
/* Repetition in a rule: written out where it is short, else counted while it runs. */
expr expr_count(build *b, expr e, uint32_t min, uint32_t max);

/* ---- characters (chars.c) -------------------------------------------------------------------- */

typedef struct char_range {
    uint32_t lo, hi;
} char_range;
typedef struct char_set {
    char_range *items;
    uint32_t n, room;
} char_set;

void char_set_add(build *b, char_set *s, uint32_t lo, uint32_t hi);
void char_set_add_set(build *b, char_set *s, const char_set *other);
/* All characters that the set has not. */
void char_set_invert(build *b, char_set *s);
/* One character of the set, in UTF-8. */
expr expr_chars(build *b, char_set *s);
/* Any character of UTF-8. */
expr expr_any_char(build *b);

/* ---- languages (language.c, language_ops.c) -------------------------------------------------- */

/* The language of an expression without rules. NULL when the build failed. */
language *language_of(build *b, expr e);
language *language_and(build *b, const language *x, const language *y);
language *language_without(build *b, const language *x, const language *y);
/* Its texts of min to max characters of UTF-8. */
language *language_chars(build *b, const language *l, uint32_t min, uint32_t max);
/* Its texts as they stand between the quotes of a JSON string, each in one way. */
language *language_json(build *b, const language *l);
/* The language of a list of texts, which is sorted. */
typedef struct text_span {
    const char *s;
    size_t n;
} text_span;
language *language_of_texts(build *b, text_span *texts, uint32_t n);
bool language_empty(const language *l);
bool language_has(const language *l, const char *s, size_t n);
/* Writes the elementary intervals of n edges: sets cut[c] where an edge begins, or begins to be
 * missing. */
void edges_cut(const byte_edge *edges, uint32_t n, bool cut[257]);

/* A deterministic automaton that grows; used by language_ops.c and determine.c. */
typedef struct language_writer {
    build *b;
    uint32_t *first, first_room;
    byte_edge *edges;
    uint32_t n_edges, edges_room;
    uint8_t *ends;
    uint32_t ends_room, n_states;
} language_writer;
void writer_state(language_writer *w, bool ends);
void writer_edge(language_writer *w, uint32_t lo, uint32_t hi, uint32_t to);
language *writer_finish(language_writer *w);

/* A map of 64-bit keys to numbers. */
typedef struct key_map {
    uint64_t *keys;
    uint32_t *values; // NONE: free
    uint32_t n, size; // size: a power of two
} key_map;
/* The key's value; a new key gets `fresh`. NONE when the build failed. */
uint32_t key_map_put(build *b, key_map *m, uint64_t key, uint32_t fresh);

/* ---- automata with calls (nfa.c, determine.c) ------------------------------------------------ */

typedef struct call_edge {
    uint32_t rule, to;
} call_edge;

/* The automaton of a rule: state 0 is its start. */
typedef struct rule_fsm {
    uint32_t n_states, n_edges, n_calls;
    uint32_t *first_edge, *first_call; // [n_states + 1]
    byte_edge *edges;
    call_edge *calls;
    uint8_t *ends;
    bool deterministic; // at most one edge for a byte
} rule_fsm;

typedef enum nfa_kind { NFA_BYTES, NFA_FREE, NFA_CALL } nfa_kind;
typedef struct nfa_edge {
    uint32_t next, to; // `next` edge of the same state, NONE at the end
    nfa_kind kind;
    uint32_t what; // lo | hi << 8, or the rule
} nfa_edge;
typedef struct nfa {
    build *b;
    uint32_t *heads, n_states, states_room;
    nfa_edge *edges;
    uint32_t n_edges, edges_room;
    uint32_t start, end;
} nfa;
/* The automaton of an expression, with free moves. It is the body of `rule`, or of none (NONE). */
void nfa_make(build *b, expr e, uint32_t rule, nfa *out);
/* Without free moves: deterministic where that does not need too many states. */
void fsm_make(build *b, expr e, uint32_t rule, bool may_branch, rule_fsm *out);
/* Gives a deterministic automaton the fewest states (minimal.c), unless it is large. The same
 * language without calls always gives the same automaton. */
void fsm_minimal(build *b, rule_fsm *f);

/* ---- front ends ------------------------------------------------------------------------------ */

/* Each returns the rule that the answer matches. */
uint32_t front_schema(build *b, const json_t *schema);
uint32_t front_json_object(build *b);
uint32_t front_regex(build *b, const char *text, size_t n);
uint32_t front_choice(build *b, const char *text, size_t n);
uint32_t front_gbnf(build *b, const char *text, size_t n);
uint32_t front_tagged(build *b, const char *text, size_t n);

/* Reads a regular expression. `whole`: it matches the whole text; else a part of it, as JSON
 * Schema's patterns do. NULL: the build failed; the message begins with the place in the text. */
language *regex_language(build *b, const char *text, size_t n, bool whole);

/* JSON's own rules (json_rules.c), made at the first use. */
typedef enum json_rule {
    RULE_VALUE,
    RULE_STRING,
    RULE_CHAR, // one character of a string
    RULE_KEY,  // a string without choices of escapes, so that equal keys have equal bytes
    RULE_INTEGER,
    RULE_NUMBER,
    RULE_OBJECT,
    RULE_ARRAY,
} json_rule;
expr json_expr(build *b, json_rule which);
expr json_space(build *b); // white space, where JSON allows it; nothing when compact
expr json_comma(build *b);
expr json_colon(build *b);
/* A value as JSON text, with white space inside. */
expr json_literal(build *b, const json_t *value);
/* Appends the text of a value that is no list. */
void json_literal_text(build *b, const json_t *value, strbuf *out);
/* One of the texts. */
expr expr_texts(build *b, text_span *texts, uint32_t n);
/* Any text of characters, between no quotes. */
language *json_any_text(build *b);

/* ---- the grammar ----------------------------------------------------------------------------- */

typedef struct fsm_state {
    uint32_t first_edge, first_call; // up to the next state's
    uint32_t rule;
    uint8_t ends;
    uint8_t text_loop; // every safe character (vocab.c) leads back to it
} fsm_state;

struct text_part;
typedef struct fsm_rule {
    uint32_t start, n_states;
    bool nullable;
    bool counted; // one state, which calls `body` min to max times
    bool plain;   // deterministic, without calls
    bool text;    // counted, and its body is plain, prefix-free and has every safe character
    bool unit;    // the body of a rule of the kind `text`
    bool called;  // by a rule
    uint32_t min, max;
    char key[SHA256_HEX_BYTES]; // of a plain rule: the SHA-256 of its automaton
    uint32_t loop; // of a plain rule: a state with text_loop that does not end, or NONE
    _Atomic(const struct text_part *) text_part; // of a unit: published, or NULL
} fsm_rule;

typedef struct mask_part mask_part;
struct shared_part;

struct grammar {
    atomic_uint references;
    grammar_vocab *vocab;
    uint32_t root;
    uint32_t n_states, n_edges, n_calls, n_rules;
    fsm_state *states; // [n_states + 1]
    byte_edge *edges;
    call_edge *calls;
    fsm_rule *rules;
    size_t bytes;
    _Atomic(mask_part *) *parts; // [n_states]: published, or NULL
    pthread_mutex_t lock;        // of making parts
    size_t parts_bytes;
};

status link_grammar(build *b, uint32_t root, grammar **out);

/* ---- the matcher (matcher.c) ----------------------------------------------------------------- */

/* A reading: what began at set `origin` is at `state`, and where it ends, `rule` ends. That is the
 * state's own rule or one whose last part the state's rule is: a call that nothing follows leaves
 * no reading behind, so that a rule that calls itself at its end has one reading at any length. */
typedef struct item {
    uint32_t state, origin, rule, count;
} item;

/* The sets of readings after each byte: set i is items [starts[i], starts[i + 1]). */
typedef struct item_sets {
    const grammar *g;
    item *items;
    uint32_t n_items, items_room;
    uint32_t *starts; // [n_sets + 1]
    uint32_t n_sets, starts_room;
    uint32_t *seen; // a hash table of the set in the making, where it is large
    uint32_t seen_size;
    uint32_t *predicted, stamp; // [n_rules]: the stamp of the set that has the rule
    status failure;
    int64_t work; // operations that are left until the matcher gives up
    bool ended;   // the last set that was made ended an item of set 0
} item_sets;

/* Operations of one call, a byte or a mask: some hundredths of a second. A mask for which every
 * token of a vocabulary of 128K is tried takes a third of them. */
#define SETS_WORK ((int64_t)8 * 1000 * 1000)
status sets_init(item_sets *s, const grammar *g);
void sets_destroy(item_sets *s);
/* Begins a set, adds readings, completes it. */
void sets_begin(item_sets *s);
void sets_add(item_sets *s, item i);
void sets_close(item_sets *s);
/* Follows a byte: a new set, or false and none. */
bool sets_step(item_sets *s, uint8_t byte);
/* Begins a set of what follows where a rule that began at `origin` ends. */
void sets_after(item_sets *s, uint32_t rule, uint32_t origin);
void sets_cut(item_sets *s, uint32_t n_sets);

struct grammar_matcher {
    grammar *g;
    item_sets sets;
    uint32_t *tokens; // [n_tokens]: sets after each token
    uint32_t n_tokens, tokens_room;
};

/* ---- the vocabulary (vocab.c) ---------------------------------------------------------------- */

/* A trie in the order of a walk: node i's subtree is [i, end[i]); node 0 is the root. */
typedef struct trie {
    uint32_t n, deepest; // deepest: bytes of the longest word
    uint8_t *byte;
    uint16_t *depth;
    uint32_t *end;
    uint32_t *first_token; // [n + 1]: into tokens
    uint32_t *tokens;
} trie;

typedef struct trie_word {
    const uint8_t *bytes;
    uint32_t n, token;
} trie_word;

/* Sorts the words; their bytes are not kept. */
bool trie_make(trie_word *words, uint32_t n, trie *out);
void trie_destroy(trie *t);

enum { LENGTHS_MAX = 32, SHARED_LISTS = 256 };

struct grammar_vocab {
    uint32_t n_tokens, n_words;
    uint8_t *bytes;
    uint32_t *first_byte; // [n_tokens + 1]
    trie all, unsafe;     // all tokens; those that are not whole safe characters
    uint32_t unsafe_child[257], all_child[257]; // subtrees of each first byte
    uint16_t *safe_chars;                       // [n_tokens]: safe characters; 0: not safe
    uint32_t *safe[LENGTHS_MAX + 1]; // masks of safe tokens of at most so many characters
    uint32_t *safe_all;
    uint32_t *safe_sorted, n_safe; // by their bytes
    uint32_t safe_first[257];      // into safe_sorted, by first byte
    uint32_t *safe_long, n_long;   // of more than LENGTHS_MAX characters
    uint32_t longest;              // characters of the longest safe token
    pthread_mutex_t lock;
    struct shared_part
        *shared[SHARED_LISTS]; // masks of plain automata, which all grammars share, by key
    uint32_t n_shared;
    size_t shared_bytes;
};

static inline bool safe_byte(uint8_t c) { return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f; }

/* ---- masks (mask_part.c, text_part.c, mask.c) ------------------------------------------------ */

/* A reading allows, wherever it stands: tokens that stay inside its rule, and tokens that leave
 * it, by what is left of them behind the rule's end. A state may be kept as what sets it apart from
 * another state of its rule, `base`: where an object's other names have any character, a state
 * inside a name that is declared differs from them by a few tokens. */
struct mask_part {
    uint32_t *words; // a mask, or NULL: tokens [n_tokens]
    uint32_t *tokens, n_tokens;
    const mask_part *base; // allowed as well, but for `without` [n_without]; or NULL
    uint32_t *without, n_without;
    trie own_after;
    const trie *after; // own_after, or the base's
    bool direct;       // nothing is known: every token has to be tried
    bool shared;       // the vocabulary's
    bool temporary;    // not kept: the caller destroys it
    size_t bytes;
};
enum { WITHOUT_MAX = 4096 };

/* The repetition of a character allows these (rules of the kind `text`). Safe tokens are left out;
 * the vocabulary has them by their characters. */
typedef struct text_part {
    uint32_t *tokens, n_tokens; // tokens of whole and begun characters, the fewest first
    uint32_t *chars;            // [n_tokens]
    uint32_t *words;            // all of them as a mask
    trie *after;                // [n_after]: what is left of tokens behind i characters
    trie after_any;             // behind any number of them
    uint32_t n_after;
} text_part;

/* A part of masks that all grammars of a vocabulary share. */
typedef struct shared_part {
    struct shared_part *next;
    char key[SHA256_HEX_BYTES]; // of what follows the state (mask_part.c), or the rule's
    uint32_t state;             // from the rule's start, where the key is the rule's; NONE: `text`
    bool called;
    mask_part *part;
    text_part *text;
} shared_part;

/* The part of a state; made at the first use. NULL when memory is out. */
mask_part *mask_part_get(grammar *g, uint32_t state);
void mask_part_destroy(mask_part *p);
/* The part of a rule of the kind `text`. */
const text_part *text_part_get(grammar *g, fsm_rule *unit);
text_part *text_part_make(const grammar *g, const fsm_rule *unit);
void text_part_destroy(text_part *p);
void shared_parts_destroy(grammar_vocab *v);

/* Words that are gathered for a trie. */
typedef struct trie_words {
    trie_word *items;
    uint32_t n, room;
    bool failed;
} trie_words;
/* Adds what is left, behind node i, of each token in the subtree of node i. Only what begins with
 * an unsafe byte, where asked for. */
void trie_words_behind(const grammar_vocab *v, const trie *t, uint32_t node, bool unsafe,
                       trie_words *out);
uint32_t fsm_next(const grammar *g, uint32_t state, uint32_t byte);

#endif
