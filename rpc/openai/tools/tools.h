/* Tool calls in the text of a model (private to rpc/openai): a parser for each format.
 *
 * What     a reader takes the text of one choice piece by piece and tells its sink what is content
 *          and what calls a tool: the call's name, and its arguments as they come. The result does
 *          not depend on how the text is cut into pieces. Text that only looks like a call at first
 *          is content, and so is text between and behind calls: no byte is lost but calls, their
 *          marks, and white space and separators around calls.
 * Owner    a reader owns its buffers; the sink and the parser are borrowed.
 * Threads  one thread at a time uses a reader. The table is constant.
 * Errors   when memory is out, `failed` is set.
 * Adding   a format is a file here and a row in table.c. */
#ifndef RPC_OPENAI_TOOLS_TOOLS_H
#define RPC_OPENAI_TOOLS_TOOLS_H

#include "base/base.h"
#include "engine/engine.h"

/* Receives what a choice's text is made of. */
typedef struct talk_sink {
    void *ctx;
    void (*content)(void *ctx, const char *text, size_t n);
    void (*call)(void *ctx, const char *name, size_t n);      // a call begins
    void (*arguments)(void *ctx, const char *text, size_t n); // more of its arguments, JSON
} talk_sink;

/* The longest name of a function, and the longest text between a mark and a call's object. */
enum { TOOL_NAME_BYTES_MAX = 256, TOOL_HEAD_BYTES_MAX = 1024 };

/* An object {"name": …, "arguments": {…}} that is read byte by byte (object.c). Arguments that come
 * after the name are passed on as they come. */
typedef struct call_object {
    int state;
    int member;     // which one the value is of
    unsigned depth; // of brackets in the value that is read
    bool quoted, escaped;
    bool begun; // the sink knows the call
    bool bare;  // the arguments alone are read
    bool told;  // the arguments were passed on
    strbuf raw; // all bytes so far, until the call begins; then those behind its arguments
    strbuf key, name, arguments;
} call_object;

typedef enum object_result {
    OBJECT_MORE, // the object goes on behind the bytes
    OBJECT_CALL, // a whole call
    OBJECT_TEXT, // no call
} object_result;

typedef struct tool_parser tool_parser;

/* How calls are written where an answer is held to them, as the parser reads them: before_name,
 * the name, before_arguments, a JSON object, after_arguments. */
typedef struct tool_form {
    const char *before_name, *before_arguments, *after_arguments;
    const char *begin, *separator, *end; // around and between calls where there may be several
} tool_form;

typedef struct tool_reader {
    const tool_parser *parser;
    talk_sink sink;
    strbuf pending; // bytes that the parser has not taken yet
    strbuf held;    // marks, separators and white space: content unless a call follows
    int state;      // the parser's; 0 at the start
    call_object object;
    strbuf word; // the parser's, as are `list` and `seen`
    bool list;
    size_t seen;
    bool behind_call; // no content was told since the last call
    bool failed;
} tool_reader;

struct tool_parser {
    const char *name; // value of --tool-call-parser
    const char *help;
    /* A chat template that mentions `mark` and not `unless` (NULL = nothing) has this format. NULL:
     * no template tells it. */
    const char *mark, *unless;
    bool special;          // the format's marks are special tokens, which the text must show
    unsigned id_bytes;     // a call's id has so many letters and digits; 0 = "call_" and 24
    const tool_form *form; // NULL: answers cannot be held to calls of this format
    /* Takes some of the n bytes and returns how many; 0 when it must see more of the text. At the
     * end (`last`) what it does not take is content. */
    size_t (*read)(tool_reader *r, const char *text, size_t n, bool last);
};

/* ---- table.c --------------------------------------------------------------------------------- */

const tool_parser *const *tool_parsers(size_t *n);
/* NULL: no such parser. */
const tool_parser *tool_parser_find(const char *name);
/* The first parser whose format the template tells; NULL when it tells none. */
const tool_parser *tool_parser_of(const chat_template *t);

/* ---- reader.c -------------------------------------------------------------------------------- */

void tool_reader_init(tool_reader *r, const tool_parser *parser, const talk_sink *sink);
void tool_reader_take(tool_reader *r, const char *text, size_t n);
/* The text ends here: what was held back is content. */
void tool_reader_end(tool_reader *r);
size_t tool_reader_bytes(const tool_reader *r); // held
void tool_reader_destroy(tool_reader *r);

/* For parsers. */

/* The number of bytes before `mark`; *found says whether it is there. Without it, the number of
 * bytes that cannot be the beginning of one. */
size_t tool_find(const char *text, size_t n, const char *mark, bool last, bool *found);
size_t tool_blanks(const char *text, size_t n); // how many bytes of white space are in front
/* The same for a mark that can be in front alone. 0 = it is not there; *more: it may be, with more
 * of the text. At the end a part of the mark counts as the mark. */
size_t tool_mark(const char *text, size_t n, const char *mark, bool last, bool *more);
void tool_content(tool_reader *r, const char *text, size_t n);
/* Holds text back that is content unless a call follows. */
void tool_hold(tool_reader *r, const char *text, size_t n);
/* Tells what is held as content: no call can follow it any more. */
void tool_keep(tool_reader *r);
/* Drops what is held: a mark has closed the call in front of it. */
void tool_drop(tool_reader *r);
void tool_call(tool_reader *r, const char *name, size_t n);
void tool_arguments(tool_reader *r, const char *text, size_t n);
/* Reads bytes of r->object, of which *used are taken. The object has been told as a call after
 * OBJECT_CALL and as content after OBJECT_TEXT, and is ready for the next one. */
object_result tool_read_object(tool_reader *r, const char *text, size_t n, size_t *used);
/* Begins a call whose arguments alone are an object: tool_read_object reads that next. */
void tool_begin_arguments(tool_reader *r, const char *name, size_t n);
/* The text ends in the object: bytes of no call are content. */
void tool_end_object(tool_reader *r);
/* Reads a text that is nothing but objects, behind an optional tag ("" = none), or a list of them
 * if `lists`. A text that begins otherwise is content. */
size_t tool_read_objects(tool_reader *r, const char *text, size_t n, bool last, const char *tag,
                         bool lists);

extern const tool_parser tool_parser_hermes, tool_parser_llama3_json, tool_parser_pythonic,
    tool_parser_mistral, tool_parser_deepseek, tool_parser_json;

#endif
