/* The tables of all commands together: what a row may not do to the others. */
#include "cli/commands.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS_MAX = 512 };

typedef struct words {
    const char *command;
    char *items[WORDS_MAX];
    size_t n;
} words;

static void add_word(words *w, const char *word, size_t n)
{
    char *copy = strndup(word, n);
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->items[i], copy) == 0) fail_msg("%s: %s is there twice", w->command, copy);
    assert_true(w->n < WORDS_MAX);
    w->items[w->n++] = copy;
}

static void add_flag(words *w, const arg_flag *f)
{
    char own[128];
    int n = snprintf(own, sizeof own, "--%s", f->name);
    add_word(w, own, (size_t)n);
    for (const char *also = f->also; also && *also;) {
        size_t size = strcspn(also, " ");
        if (also[0] != '-' || size < 2) fail_msg("%s: alias '%s'", w->command, also);
        add_word(w, also, size);
        also += size + strspn(also + size, " ");
    }
}

static const arg_flag *find_row(const arg_command *c, const char *name)
{
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_flags; i++)
            if (strcmp(c->groups[g].flags[i].name, name) == 0) return &c->groups[g].flags[i];
    return NULL;
}

static void check_tables(const cli_command *of, const arg_command *c, void *ctx)
{
    words w = {.command = c->name};
    size_t n = strlen(of->name), n_name = strlen(c->name);
    assert_true(n_name > n && strcmp(c->name + n_name - n, of->name) == 0);
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_flags; i++) {
            const arg_flag *f = &c->groups[g].flags[i];
            add_flag(&w, f);
            if (args_takes_value(f) != (f->value != NULL)) fail_msg("%s: %s", c->name, f->name);
        }
    if (c->operand_flag) {
        const arg_flag *f = find_row(c, c->operand_flag);
        assert_non_null(c->operand);
        assert_true(f && args_takes_value(f));
    }
    for (size_t i = 0; i < w.n; i++) free(w.items[i]);
    ++*(size_t *)ctx;
}

static void names_are_unique(void **state)
{
    (void)state;
    size_t n_commands, n_benches, seen = 0;
    cli_commands(&n_commands);
    cli_benches(&n_benches);
    cli_look_at_all(check_tables, &seen);
    assert_int_equal(seen, n_commands + n_benches - 1); /* bench itself has no flags */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_are_unique)};
    return cmocka_run_group_tests_name("cli_tables", tests, NULL, NULL);
}
