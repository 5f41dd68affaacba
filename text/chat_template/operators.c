/* Arithmetic, with Python's results and errors. Integers have 64 bits: a larger result is an
 * error. */
#include "text/chat_template/render.h"
#include <math.h>

static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static bool refuse_operands(render *r, binary_op op, value a, value b)
{
    if (op == OP_ADD && (a.kind == V_STRING || a.kind == V_LIST || a.kind == V_TUPLE))
        return render_fail(r, STATUS_INVALID, "can only concatenate %s (not \"%s\") to %s",
                           value_type(a), value_type(b), value_type(a));
    return render_fail(r, STATUS_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                       symbols[op], value_type(a), value_type(b));
}

static bool too_large(render *r)
{
    return render_fail(r, STATUS_LIMIT, "an integer does not fit 64 bits");
}

static bool int_power(render *r, int64_t base, int64_t exponent, value *out)
{
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0)
            return render_fail(r, STATUS_INVALID, "0.0 cannot be raised to a negative power");
        *out = value_float(pow((double)base, (double)exponent));
        return true;
    }
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return too_large(r);
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return too_large(r);
    }
    *out = value_int(result);
    return true;
}

/* Integer division as in Python: quotients round down, remainders have the divisor's sign. */
static bool int_divide(render *r, binary_op op, int64_t a, int64_t b, value *out)
{
    if (b == 0)
        return render_fail(r, STATUS_INVALID,
                           op == OP_DIV   ? "division by zero"
                           : op == OP_MOD ? "integer modulo by zero"
                                          : "integer division or modulo by zero");
    if (op == OP_DIV) {
        *out = value_float((double)((long double)a / (long double)b));
        return true;
    }
    if (b == -1) {
        if (op == OP_FLOORDIV && a == INT64_MIN) return too_large(r);
        *out = value_int(op == OP_MOD ? 0 : -a);
        return true;
    }
    int64_t q = a / b, m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) {
        q--;
        m += b;
    }
    *out = value_int(op == OP_MOD ? m : q);
    return true;
}

static bool int_binary(render *r, binary_op op, int64_t a, int64_t b, value *out)
{
    int64_t v = 0;
    bool overflow = false;
    switch (op) {
    case OP_ADD: overflow = __builtin_add_overflow(a, b, &v); break;
    case OP_SUB: overflow = __builtin_sub_overflow(a, b, &v); break;
    case OP_MUL: overflow = __builtin_mul_overflow(a, b, &v); break;
    case OP_POW: return int_power(r, a, b, out);
    case OP_DIV:
    case OP_FLOORDIV:
    case OP_MOD: return int_divide(r, op, a, b, out);
    }
    *out = value_int(v);
    return !overflow || too_large(r);
}

/* Python's float_divmod. */
static void float_divmod(double a, double b, double *quotient, double *modulo)
{
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0) {
        if ((b < 0) != (m < 0)) {
            m += b;
            q -= 1;
        }
    } else {
        m = copysign(0.0, b);
    }
    if (q != 0) {
        double down = floor(q);
        q = q - down > 0.5 ? down + 1 : down;
    } else {
        q = copysign(0.0, a / b);
    }
    *quotient = q;
    *modulo = m;
}

static bool float_binary(render *r, binary_op op, double a, double b, value *out)
{
    double q, m;
    switch (op) {
    case OP_ADD: *out = value_float(a + b); return true;
    case OP_SUB: *out = value_float(a - b); return true;
    case OP_MUL: *out = value_float(a * b); return true;
    case OP_POW:
        if (a == 0 && b < 0)
            return render_fail(r, STATUS_INVALID, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b))
            return render_fail(r, STATUS_UNSUPPORTED, "complex numbers are not supported");
        *out = value_float(pow(a, b));
        if (isinf(out->f) && isfinite(a) && isfinite(b))
            return render_fail(r, STATUS_INVALID, "(34, 'Numerical result out of range')");
        return true;
    case OP_DIV:
    case OP_FLOORDIV:
    case OP_MOD: break;
    }
    if (b == 0)
        return render_fail(r, STATUS_INVALID,
                           op == OP_DIV   ? "float division by zero"
                           : op == OP_MOD ? "float modulo"
                                          : "float floor division by zero");
    float_divmod(a, b, &q, &m);
    *out = value_float(op == OP_DIV ? a / b : op == OP_MOD ? m : q);
    return true;
}

static bool repeat_string(render *r, text t, int64_t times, value *out)
{
    builder b = builder_new(r);
    for (int64_t i = 0; i < times && t.n > 0 && !b.failed; i++) builder_add(&b, t);
    return builder_finish(&b, out);
}

static bool repeat_list(render *r, value v, int64_t times, value *out)
{
    list *l = list_new(r, 0);
    if (!l) return false;
    for (int64_t i = 0; i < times && v.list->n > 0; i++) {
        if (!render_step(r, v.list->n)) return false;
        for (size_t k = 0; k < v.list->n; k++)
            if (!list_push(r, l, v.list->items[k])) return false;
    }
    *out = v.kind == V_TUPLE ? value_tuple(l) : value_list(l);
    return true;
}

static void add_escaped(builder *b, text t)
{
    for (size_t i = 0; i < t.n; i++) {
        switch (t.s[i]) {
        case '&': builder_add(b, TEXT("&amp;")); break;
        case '<': builder_add(b, TEXT("&lt;")); break;
        case '>': builder_add(b, TEXT("&gt;")); break;
        case '\'': builder_add(b, TEXT("&#39;")); break;
        case '"': builder_add(b, TEXT("&#34;")); break;
        default: builder_add(b, (text){t.s + i, 1}); break;
        }
    }
}

/* Concatenates as markupsafe does: a safe text stays safe, and text added to it is escaped. */
static bool concatenate_texts(render *r, value a, value b, value *out)
{
    builder made = builder_new(r);
    if (b.safe && !a.safe) add_escaped(&made, text_of(a));
    else builder_add(&made, text_of(a));
    if (a.safe && !b.safe) add_escaped(&made, text_of(b));
    else builder_add(&made, text_of(b));
    if (!builder_finish(&made, out)) return false;
    out->safe = a.safe || b.safe;
    return true;
}

static bool concatenate(render *r, value a, value b, value *out)
{
    if (a.kind == V_STRING) return concatenate_texts(r, a, b, out);
    list *l = list_new(r, a.list->n + b.list->n);
    if (!l || !render_step(r, l->capacity)) return false;
    for (size_t i = 0; i < a.list->n; i++) l->items[l->n++] = a.list->items[i];
    for (size_t i = 0; i < b.list->n; i++) l->items[l->n++] = b.list->items[i];
    *out = a.kind == V_TUPLE ? value_tuple(l) : value_list(l);
    return true;
}

static bool is_repeatable(value v)
{
    return v.kind == V_STRING || v.kind == V_LIST || v.kind == V_TUPLE;
}

bool value_binary(render *r, binary_op op, value a, value b, value *out)
{
    if (a.kind == V_STRING && a.safe && op != OP_ADD)
        return render_fail(r, STATUS_UNSUPPORTED, "of safe text only '+' is supported");
    if (op == OP_MOD && a.kind == V_STRING) return value_percent_format(r, text_of(a), b, out);
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        return value_fail_undefined(r, a.kind == V_UNDEFINED ? a : b);
    if (value_is_integer(a) && value_is_integer(b))
        return int_binary(r, op, value_as_int(a), value_as_int(b), out);
    if (value_is_number(a) && value_is_number(b))
        return float_binary(r, op, value_as_float(a), value_as_float(b), out);
    if (op == OP_ADD && a.kind == b.kind && is_repeatable(a)) return concatenate(r, a, b, out);
    if (op == OP_MUL && is_repeatable(b) && value_is_integer(a)) {
        value swap = a;
        a = b;
        b = swap;
    }
    if (op == OP_MUL && is_repeatable(a) && value_is_integer(b))
        return a.kind == V_STRING ? repeat_string(r, text_of(a), value_as_int(b), out)
                                  : repeat_list(r, a, value_as_int(b), out);
    return refuse_operands(r, op, a, b);
}

bool value_negate(render *r, value v, value *out)
{
    if (v.kind == V_UNDEFINED) return value_fail_undefined(r, v);
    if (v.kind == V_FLOAT) {
        *out = value_float(-v.f);
        return true;
    }
    if (!value_is_integer(v))
        return render_fail(r, STATUS_INVALID, "bad operand type for unary -: '%s'", value_type(v));
    if (value_as_int(v) == INT64_MIN) return too_large(r);
    *out = value_int(-value_as_int(v));
    return true;
}
