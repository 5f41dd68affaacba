/* Parses flags by the tables of a command. */
#include "cli/args.h"
#include "base/number.h"
#include "cli/nearest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---------------------------------------------------------------------------------- */

static bool read_whole(const char *text, uint64_t *out)
{
    const char *end = number_read_whole(text, out);
    return end && !*end;
}

static bool read_number(const char *text, double *out)
{
    const char *end = number_read(text, out);
    return end && !*end;
}

bool args_read_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    size_t digits = strspn(text, "0123456789.");
    if (digits == 0 || digits > 20) return false;
    char number[24];
    memcpy(number, text, digits);
    number[digits] = '\0';
    const char *unit = text + digits;
    double scale = 1;
    const char *at = *unit ? strchr(units, *unit >= 'a' ? *unit - 'a' + 'A' : *unit) : NULL;
    if (at) {
        scale = ldexp(1.0, 10 * (int)(at - units + 1));
        unit++;
        if (strcmp(unit, "iB") == 0) unit += 2;
        else if (strcmp(unit, "B") == 0) unit++;
    }
    double v;
    if (*unit || !read_number(number, &v)) return false;
    v *= scale;
    if (v >= ldexp(1.0, 63)) return false;
    *out = (uint64_t)v;
    return true;
}

static bool in_range(const arg_flag *f, double v)
{
    return (f->above_min ? v > f->min : v >= f->min) && v <= f->max;
}

static bool out_of_range(const arg_flag *f, const char *text, const char *what, error *err)
{
    if (f->max >= 4294967295.0)
        error_set(err, STATUS_INVALID, "--%s: '%.64s' must be %s, %.15g or more", f->name, text,
                  what, f->min);
    else if (f->above_min)
        error_set(err, STATUS_INVALID, "--%s: '%.64s' must be %s above %.15g and up to %.15g",
                  f->name, text, what, f->min, f->max);
    else
        error_set(err, STATUS_INVALID, "--%s: '%.64s' must be %s from %.15g to %.15g", f->name,
                  text, what, f->min, f->max);
    return false;
}

static bool set_option(const arg_flag *f, const char *text, const char **out, error *err)
{
    for (const char *const *c = f->options; *c; c++) {
        if (strcmp(*c, text) != 0) continue;
        *out = *c;
        return true;
    }
    strbuf all = {0};
    for (const char *const *c = f->options; *c; c++)
        strbuf_printf(&all, "%s%s", c == f->options ? "" : ", ", *c);
    error_set(err, STATUS_INVALID, "--%s: '%.64s' is not one of %s", f->name, text,
              all.data ? all.data : "");
    strbuf_destroy(&all);
    return false;
}

bool arg_list_add(arg_list *list, const char *text)
{
    const char **grown = realloc(list->items, (list->n + 1) * sizeof *grown);
    if (!grown) return false;
    list->items = grown;
    list->items[list->n++] = text;
    return true;
}

static bool add_to_list(const arg_flag *f, const char *text, arg_list *list, error *err)
{
    if (arg_list_add(list, text)) return true;
    error_set(err, STATUS_NO_MEMORY, "--%s: out of memory", f->name);
    return false;
}

/* ---- values that are members of a JSON object ------------------------------------------------ */

static json_t *make_member(const arg_flag *f, const char *text, json_t *so_far, error *err)
{
    double number;
    uint64_t whole;
    json_t *tree = NULL;
    switch (f->json) {
    case ARG_JSON_TRUE: return json_true();
    case ARG_JSON_NUMBER:
        if (read_number(text, &number) && in_range(f, number)) return json_real(number);
        out_of_range(f, text, "a number", err);
        return NULL;
    case ARG_JSON_WHOLE:
        /* -1 is the only negative number that a flag takes: top_k's "all". */
        if (strcmp(text, "-1") == 0 && f->min <= -1) return json_integer(-1);
        if (read_whole(text, &whole) && whole <= INT64_MAX && in_range(f, (double)whole))
            return json_integer((json_int_t)whole);
        out_of_range(f, text, "a whole number", err);
        return NULL;
    case ARG_JSON_TEXT:
        tree = json_string(text);
        if (!tree) error_set(err, STATUS_INVALID, "--%s: is not UTF-8", f->name);
        return tree;
    case ARG_JSON_STRINGS:
        tree = so_far ? json_incref(so_far) : json_array();
        if (tree && json_array_append_new(tree, json_string(text)) == 0) return tree;
        json_decref(tree);
        error_set(err, STATUS_INVALID, "--%s: is not UTF-8", f->name);
        return NULL;
    }
    return NULL;
}

static bool set_field(const arg_flag *f, const char *text, json_t **object, error *err)
{
    if (!*object) *object = json_object();
    json_t *member = make_member(f, text, json_object_get(*object, f->field), err);
    if (!member) return false;
    if (json_object_set_new(*object, f->field, member) == 0) return true;
    error_set(err, STATUS_NO_MEMORY, "--%s: out of memory", f->name);
    return false;
}

/* ---- one flag -------------------------------------------------------------------------------- */

bool args_takes_value(const arg_flag *f)
{
    return f->kind != ARG_SWITCH && !(f->kind == ARG_FIELD && f->json == ARG_JSON_TRUE);
}

bool args_is_list(const arg_flag *f)
{
    return f->kind == ARG_LIST || (f->kind == ARG_FIELD && f->json == ARG_JSON_STRINGS);
}

static bool set_value(const arg_flag *f, const char *text, void *target, error *err)
{
    void *out = (char *)target + f->offset;
    uint64_t whole;
    switch (f->kind) {
    case ARG_SWITCH: *(bool *)out = true; return true;
    case ARG_TEXT: *(const char **)out = text; return true;
    case ARG_OPTION: return set_option(f, text, out, err);
    case ARG_LIST: return add_to_list(f, text, out, err);
    case ARG_FIELD: return set_field(f, text, out, err);
    case ARG_COUNT:
        if (!read_whole(text, &whole) || whole > UINT32_MAX || !in_range(f, (double)whole))
            return out_of_range(f, text, "a whole number", err);
        *(uint32_t *)out = (uint32_t)whole;
        return true;
    case ARG_WHOLE:
        if (!read_whole(text, &whole) || !in_range(f, (double)whole))
            return out_of_range(f, text, "a whole number", err);
        *(uint64_t *)out = whole;
        return true;
    case ARG_BYTES:
        if (!args_read_bytes(text, &whole) || !in_range(f, (double)whole))
            return out_of_range(f, text, "a size such as 512M or 4G", err);
        *(uint64_t *)out = whole;
        return true;
    }
    return false;
}

static bool has_word(const char *words, const char *word, size_t n)
{
    for (size_t size; words && *words; words += size + strspn(words + size, " ")) {
        size = strcspn(words, " ");
        if (size == n && memcmp(words, word, n) == 0) return true;
    }
    return false;
}

/* The word is as typed, with its dashes. */
static bool names_flag(const arg_flag *f, const char *word, size_t n)
{
    bool own = n > 2 && memcmp(word, "--", 2) == 0 && strlen(f->name) == n - 2 &&
               memcmp(f->name, word + 2, n - 2) == 0;
    return own || has_word(f->also, word, n);
}

/* *number receives the flag's index among all flags of the command. */
static const arg_flag *find_flag(const arg_command *command, const char *word, size_t n,
                                 void **target, size_t *number)
{
    *number = 0;
    for (size_t g = 0; g < command->n_groups; g++)
        for (size_t i = 0; i < command->groups[g].n_flags; i++, ++*number) {
            const arg_flag *f = &command->groups[g].flags[i];
            if (!names_flag(f, word, n)) continue;
            *target = command->groups[g].target;
            return f;
        }
    return NULL;
}

static void complain_unknown(const arg_command *command, const char *word, size_t n, error *err)
{
    nearest near;
    nearest_start(&near, word, n);
    for (size_t g = 0; g < command->n_groups; g++)
        for (size_t i = 0; i < command->groups[g].n_flags; i++) {
            const arg_flag *f = &command->groups[g].flags[i];
            nearest_try(&near, f->name, strlen(f->name));
            for (const char *also = f->also; also && *also;) {
                size_t size = strcspn(also, " ");
                if (also[1] == '-') nearest_try(&near, also, size);
                also += size + strspn(also + size, " ");
            }
        }
    error_set(err, STATUS_INVALID, "unknown flag '%.*s'", n > 64 ? 64 : (int)n, word);
    if (!near.best) return;
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": did you mean --%.*s?", (int)near.best_n,
             near.best);
}

/* Takes the flag at argv[*i], and the argument behind it if the flag has a value. given has one
 * element for each flag of the command. */
static bool take_flag(const arg_command *command, int argc, char **argv, int *i, bool *given,
                      error *err)
{
    const char *word = argv[*i];
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word), number;
    void *target;
    const arg_flag *f = find_flag(command, word, n, &target, &number);
    if (!f) {
        complain_unknown(command, word, n, err);
        return false;
    }
    given[number] = true;
    if (!args_takes_value(f)) {
        if (!equals) return set_value(f, NULL, target, err);
        error_set(err, STATUS_INVALID, "--%s: takes no value", f->name);
        return false;
    }
    if (equals) return set_value(f, equals + 1, target, err);
    if (*i + 1 >= argc) {
        error_set(err, STATUS_INVALID, "--%s: its value (%s) is missing", f->name, f->value);
        return false;
    }
    return set_value(f, argv[++*i], target, err);
}

static bool set_initial(const arg_command *command, error *err)
{
    for (size_t g = 0; g < command->n_groups; g++)
        for (size_t i = 0; i < command->groups[g].n_flags; i++) {
            const arg_flag *f = &command->groups[g].flags[i];
            if (f->initial && !set_value(f, f->initial, command->groups[g].target, err))
                return false;
        }
    return true;
}

/* ---- the environment ------------------------------------------------------------------------- */

void args_name_variable(const char *prefix, const char *flag, char *name, size_t size)
{
    int n = snprintf(name, size, "%s%s", prefix, flag);
    for (int i = 0; i < n && (size_t)i < size; i++) {
        if (name[i] == '-') name[i] = '_';
        else if (name[i] >= 'a' && name[i] <= 'z') name[i] = (char)(name[i] - 'a' + 'A');
    }
}

/* The value of a flag's variable; NULL when it is not set, or empty. */
static const char *from_environment(const char *prefix, const char *flag, char *name, size_t size)
{
    args_name_variable(prefix, flag, name, size);
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Sets a switch by one of two words. */
static bool set_switch(const arg_flag *f, const char *value, const char *on, const char *off,
                       void *target, error *err)
{
    if (strcmp(value, off) == 0) return true;
    if (strcmp(value, on) == 0) return set_value(f, NULL, target, err);
    error_set(err, STATUS_INVALID, "'%.64s' must be %s or %s", value, on, off);
    return false;
}

static bool take_environment(const arg_command *command, bool *given, error *err)
{
    char name[ARG_VARIABLE_BYTES_MAX];
    size_t number = 0;
    if (!command->environment) return true;
    for (size_t g = 0; g < command->n_groups; g++)
        for (size_t i = 0; i < command->groups[g].n_flags; i++, number++) {
            const arg_flag *f = &command->groups[g].flags[i];
            if (given[number]) continue;
            const char *value = from_environment(command->environment, f->name, name, sizeof name);
            if (!value) continue;
            void *target = command->groups[g].target;
            given[number] = true;
            if (args_takes_value(f) ? set_value(f, value, target, err)
                                    : set_switch(f, value, "1", "0", target, err))
                continue;
            error_prefix(err, "%s", name);
            return false;
        }
    return true;
}

/* ---- settings -------------------------------------------------------------------------------- */

/* set has one element for each flag: a setting has given it a value. */
static bool take_setting(const arg_command *command, const arg_setting *s, const bool *given,
                         bool *set, error *err)
{
    char word[ARG_VARIABLE_BYTES_MAX];
    size_t number;
    void *target;
    int n = snprintf(word, sizeof word, "--%s", s->name);
    size_t size = (size_t)n < sizeof word ? (size_t)n : sizeof word - 1;
    const arg_flag *f = find_flag(command, word, size, &target, &number);
    if (!f) {
        complain_unknown(command, word, size, err);
        return false;
    }
    bool list = args_is_list(f);
    if (s->item && !list) {
        error_set(err, STATUS_INVALID, "--%s: takes one value, not a list", f->name);
        return false;
    }
    if (set[number] && !list) {
        error_set(err, STATUS_INVALID, "--%s: is given twice, under two names", f->name);
        return false;
    }
    set[number] = true;
    if (given[number]) return true;
    if (args_takes_value(f)) return set_value(f, s->value, target, err);
    if (set_switch(f, s->value, "true", "false", target, err)) return true;
    error_prefix(err, "--%s", f->name);
    return false;
}

static bool take_settings(const arg_command *command, const bool *given, bool *set, error *err)
{
    const arg_settings *all = NULL;
    if (!command->settings) return true;
    if (!status_ok(command->settings(command->settings_ctx, &all, err))) return false;
    for (size_t i = 0; all && i < all->n; i++) {
        if (take_setting(command, &all->items[i], given, set, err)) continue;
        error_prefix(err, "%s: line %u", all->source, all->items[i].line);
        return false;
    }
    return true;
}

/* ---- a command line -------------------------------------------------------------------------- */

/* Makes an operand the value of its flag. */
static bool take_operand(const arg_command *command, const char *word, bool *given, error *err)
{
    char name[ARG_VARIABLE_BYTES_MAX];
    size_t number;
    void *target;
    int n = snprintf(name, sizeof name, "--%s", command->operand_flag);
    const arg_flag *f = find_flag(command, name, (size_t)n, &target, &number);
    if (given[number]) {
        error_set(err, STATUS_INVALID, "unexpected argument '%.64s': --%s is given", word, f->name);
        return false;
    }
    given[number] = true;
    return set_value(f, word, target, err);
}

static arg_outcome parse_words(const arg_command *command, int argc, char **argv,
                               const char **operand, bool *given, error *err)
{
    bool flags_ended = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!flags_ended && strcmp(arg, "--") == 0) {
            flags_ended = true;
        } else if (!flags_ended && (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)) {
            return ARG_OUTCOME_HELP;
        } else if (!flags_ended && arg[0] == '-' && arg[1]) {
            if (!take_flag(command, argc, argv, &i, given, err)) return ARG_OUTCOME_WRONG;
        } else if (!command->operand || *operand) {
            error_set(err, STATUS_INVALID, "unexpected argument '%.64s'", arg);
            return ARG_OUTCOME_WRONG;
        } else {
            *operand = arg;
        }
    }
    if (command->operand_flag)
        return !*operand || take_operand(command, *operand, given, err) ? ARG_OUTCOME_RUN
                                                                        : ARG_OUTCOME_WRONG;
    if (!command->operand || command->operand_optional || *operand) return ARG_OUTCOME_RUN;
    error_set(err, STATUS_INVALID, "%s is missing", command->operand);
    return ARG_OUTCOME_WRONG;
}

arg_outcome args_parse(const arg_command *command, int argc, char **argv, const char **operand,
                       error *err)
{
    const char *word = NULL;
    size_t n_flags = 1;
    for (size_t g = 0; g < command->n_groups; g++) n_flags += command->groups[g].n_flags;
    bool *given = calloc(2 * n_flags, sizeof *given);
    if (!given) {
        error_set(err, STATUS_NO_MEMORY, "out of memory");
        return ARG_OUTCOME_WRONG;
    }
    arg_outcome outcome = ARG_OUTCOME_WRONG;
    if (set_initial(command, err)) outcome = parse_words(command, argc, argv, &word, given, err);
    if (outcome == ARG_OUTCOME_RUN && !(take_environment(command, given, err) &&
                                        take_settings(command, given, given + n_flags, err)))
        outcome = ARG_OUTCOME_WRONG;
    free(given);
    if (operand) *operand = word;
    return outcome;
}
