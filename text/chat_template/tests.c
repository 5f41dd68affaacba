/* `is` tests, one row each. */
#include "text/chat_template/render.h"

#define TEST_FN(name)                                                                              \
    static bool name(render *r, value self, const value *args, const call_args *call, value *out)

/* A test of the value alone. */
#define SIMPLE_TEST(name, expression)                                                              \
    TEST_FN(name)                                                                                  \
    {                                                                                              \
        (void)r, (void)args, (void)call;                                                           \
        *out = value_bool(expression);                                                             \
        return true;                                                                               \
    }

SIMPLE_TEST(test_defined, self.kind != V_UNDEFINED)
SIMPLE_TEST(test_undefined, self.kind == V_UNDEFINED)
SIMPLE_TEST(test_none, self.kind == V_NONE)
SIMPLE_TEST(test_boolean, self.kind == V_BOOL)
SIMPLE_TEST(test_true, self.kind == V_BOOL && self.b)
SIMPLE_TEST(test_false, self.kind == V_BOOL && !self.b)
SIMPLE_TEST(test_integer, self.kind == V_INT)
SIMPLE_TEST(test_float, self.kind == V_FLOAT)
SIMPLE_TEST(test_number, value_is_number(self))
SIMPLE_TEST(test_string, self.kind == V_STRING)
SIMPLE_TEST(test_mapping, self.kind == V_DICT)
SIMPLE_TEST(test_callable, value_callable(self))

static bool is_sequence(value v)
{
    return v.kind == V_STRING || v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_DICT ||
           v.kind == V_RANGE || v.kind == V_UNDEFINED;
}

SIMPLE_TEST(test_sequence, is_sequence(self))
SIMPLE_TEST(test_iterable,
            is_sequence(self) || self.kind == V_VIEW || self.kind == V_ITER || self.kind == V_LOOP)

static bool text_test(render *r, value self, enum text_class wanted, value *out)
{
    value v;
    if (!value_str(r, self, &v)) return false;
    *out = value_bool(text_is_class(text_of(v), wanted));
    return render_step(r, v.size);
}

TEST_FN(test_lower)
{
    (void)args, (void)call;
    return text_test(r, self, CLASS_LOWER, out);
}

TEST_FN(test_upper)
{
    (void)args, (void)call;
    return text_test(r, self, CLASS_UPPER, out);
}

/* self % divisor == expected. */
static bool remainder_is(render *r, value self, value divisor, int64_t expected, value *out)
{
    value rest;
    bool equal;
    if (!value_binary(r, OP_MOD, self, divisor, &rest) ||
        !value_equal(r, rest, value_int(expected), &equal))
        return false;
    *out = value_bool(equal);
    return true;
}

TEST_FN(test_odd)
{
    (void)args, (void)call;
    return remainder_is(r, self, value_int(2), 1, out);
}

TEST_FN(test_even)
{
    (void)args, (void)call;
    return remainder_is(r, self, value_int(2), 0, out);
}

TEST_FN(test_divisibleby)
{
    (void)call;
    return remainder_is(r, self, args[0], 0, out);
}

TEST_FN(test_eq)
{
    bool b;
    (void)call;
    if (!value_equal(r, self, args[0], &b)) return false;
    *out = value_bool(b);
    return true;
}

TEST_FN(test_ne)
{
    if (!test_eq(r, self, args, call, out)) return false;
    out->b = !out->b;
    return true;
}

TEST_FN(test_lt)
{
    bool b;
    (void)call;
    if (!value_less(r, "<", self, args[0], &b)) return false;
    *out = value_bool(b);
    return true;
}

TEST_FN(test_gt)
{
    bool b;
    (void)call;
    if (!value_less(r, ">", args[0], self, &b)) return false;
    *out = value_bool(b);
    return true;
}

TEST_FN(test_le)
{
    bool less, equal;
    (void)call;
    if (!value_less(r, "<=", self, args[0], &less) || !value_equal(r, self, args[0], &equal))
        return false;
    *out = value_bool(less || equal);
    return true;
}

TEST_FN(test_ge)
{
    bool less, equal;
    (void)call;
    if (!value_less(r, ">=", args[0], self, &less) || !value_equal(r, self, args[0], &equal))
        return false;
    *out = value_bool(less || equal);
    return true;
}

TEST_FN(test_in)
{
    bool b;
    (void)call;
    if (!value_contains(r, args[0], self, &b)) return false;
    *out = value_bool(b);
    return true;
}

/* Identity of singletons and containers. Strings and numbers have no identity that a template could
 * rely on, so they are compared by value. */
TEST_FN(test_sameas)
{
    (void)r, (void)call;
    value other = args[0];
    bool same = self.kind == other.kind;
    if (same && self.kind == V_BOOL) same = self.b == other.b;
    else if (same && self.kind == V_FLOAT) same = self.f == other.f;
    else if (same && self.kind == V_STRING) same = text_equal(text_of(self), text_of(other));
    else if (same && self.kind != V_NONE) same = self.i == other.i;
    *out = value_bool(same);
    return true;
}

static bool exists(render *r, value self, const builtin *(*lookup)(text name), value *out)
{
    (void)r;
    *out = value_bool(self.kind == V_STRING && lookup(text_of(self)));
    return true;
}

TEST_FN(test_filter)
{
    (void)args, (void)call;
    return exists(r, self, tmpl_find_filter, out);
}

TEST_FN(test_test)
{
    (void)args, (void)call;
    return exists(r, self, tmpl_find_test, out);
}

const builtin tmpl_tests[] = {
    {"defined", "", 0, test_defined, 0},
    {"undefined", "", 0, test_undefined, 0},
    {"none", "", 0, test_none, 0},
    {"boolean", "", 0, test_boolean, 0},
    {"true", "", 0, test_true, 0},
    {"false", "", 0, test_false, 0},
    {"integer", "", 0, test_integer, 0},
    {"float", "", 0, test_float, 0},
    {"number", "", 0, test_number, 0},
    {"string", "", 0, test_string, 0},
    {"mapping", "", 0, test_mapping, 0},
    {"sequence", "", 0, test_sequence, 0},
    {"iterable", "", 0, test_iterable, 0},
    {"callable", "", 0, test_callable, 0},
    {"lower", "", 0, test_lower, 0},
    {"upper", "", 0, test_upper, 0},
    {"odd", "", 0, test_odd, 0},
    {"even", "", 0, test_even, 0},
    {"divisibleby", "num", 1, test_divisibleby, 0},
    {"sameas", "other", 1, test_sameas, 0},
    {"in", "seq", 1, test_in, 0},
    {"eq", "other", 1, test_eq, 0},
    {"equalto", "other", 1, test_eq, 0},
    {"==", "other", 1, test_eq, 0},
    {"ne", "other", 1, test_ne, 0},
    {"!=", "other", 1, test_ne, 0},
    {"lt", "other", 1, test_lt, 0},
    {"lessthan", "other", 1, test_lt, 0},
    {"<", "other", 1, test_lt, 0},
    {"le", "other", 1, test_le, 0},
    {"<=", "other", 1, test_le, 0},
    {"gt", "other", 1, test_gt, 0},
    {"greaterthan", "other", 1, test_gt, 0},
    {">", "other", 1, test_gt, 0},
    {"ge", "other", 1, test_ge, 0},
    {">=", "other", 1, test_ge, 0},
    {"filter", "", 0, test_filter, 0},
    {"test", "", 0, test_test, 0},
    {0},
};
