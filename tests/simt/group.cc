/* wgmma.mma_async, m64nNk16 of bf16 and f16 and m64nNk32 of e4m3, A in registers or in shared
 * memory and B in shared memory (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
 * Instructions").
 *
 * A product is computed when its group is waited for, of what is in shared memory by then; until
 * then its accumulators are junk. Refused are:
 *
 *     devices     all but those of compute capability 9.0
 *     registers   products whose accumulators or A changed since the last fence, or without a fence
 *                 since the last wait; accumulators that are touched while a product is under way
 *     the group   threads that make different products, and kernels that end before a product
 *     memory      (strict) operands that no barrier, copy's wait or fence of the async proxy made
 *                 visible, and writes to them while a product is under way */
#include "tests/simt/group.h"
#include "tests/simt/strict.h"

#include <stdio.h>
#include <vector>

enum {
    M = 64,
    K_BYTES = 32, /* of a row of A: 16 elements of 16 bits, or 32 of 8 */
    K_MOST = 32,
    N_MOST = 256,
    PIECE = 16, /* bytes that a swizzle moves as one */
    EIGHT = 8,  /* rows, or columns, that a stride leads over */
    /* Dynamic shared memory begins at a multiple of 16, and not of the bytes after which a swizzle
     * repeats: on a device the system's and static variables come first. */
    DYNAMIC_AT = 0x510,
    JUNK = 0xff, /* each byte of an accumulator under way: NaNs */
    OPEN = -1,   /* not committed yet */
};

struct product {
    float *d;
    unsigned columns;
    uint32_t a[4];
    bool a_shared;
    uint64_t a_at, b; /* descriptors */
    bool adds, rows;
    simt_operands of;
    int line;
    long group;
    uint32_t phase;
};

/* An accumulator under way, and its values before the first of its products. */
struct accumulator {
    float *d;
    unsigned n;
    float values[N_MOST / 2];
};

/* Registers that were an operand before, as they were at the last fence. */
struct seen {
    const void *at;
    size_t bytes;
    unsigned char values[N_MOST / 2 * sizeof(float)];
};

struct member {
    std::vector<product> products;
    std::vector<accumulator> under_way;
    std::vector<seen> operands;
    bool fenced;
    long n_groups;
};

static member members[THREADS_MOST];

uint32_t simt_shared_address(const void *p)
{
    return (uint32_t)((const unsigned char *)p - simt_shared()) + DYNAMIC_AT;
}

/* ---- registers ------------------------------------------------------------------------------- */

static accumulator *find_under_way(member *m, const float *d)
{
    for (accumulator &a : m->under_way)
        if (a.d == d) return &a;
    return NULL;
}

static void check_junk(const accumulator &a)
{
    static const std::vector<unsigned char> junk(sizeof a.values, JUNK);
    if (memcmp(a.d, junk.data(), a.n * sizeof *a.d) != 0)
        simt_refuse("an accumulator changed while a product was under way");
}

/* An operand that an earlier fence has seen must still have that value; a new one is noted for the
 * next fence. */
static void check_operand(member *m, const void *at, size_t bytes)
{
    for (const seen &s : m->operands)
        if (s.at == at && s.bytes == bytes) {
            if (memcmp(s.values, at, bytes) != 0)
                simt_refuse("an operand of wgmma changed behind the fence");
            return;
        }
    seen s = {at, bytes, {0}};
    memcpy(s.values, at, bytes);
    m->operands.push_back(s);
}

void simt_group_fence(void)
{
    member *m = &members[threadIdx.x];
    m->fenced = true;
    for (seen &s : m->operands) memcpy(s.values, s.at, s.bytes);
}

void simt_group_commit(void)
{
    member *m = &members[threadIdx.x];
    for (product &p : m->products)
        if (p.group == OPEN) p.group = m->n_groups;
    m->n_groups++;
}

/* ---- shared memory --------------------------------------------------------------------------- */

static uint32_t field(uint64_t descriptor, int at, int bits)
{
    return (uint32_t)(descriptor >> at & ((1u << bits) - 1));
}

static unsigned element_bytes(simt_operands of) { return of == SIMT_E4M3 ? 1 : 2; }

/* One operand in shared memory of a product. */
struct matrix {
    uint64_t at;     /* its descriptor */
    unsigned bytes;  /* of an element */
    unsigned others; /* columns of B, or rows of A, of which a product goes over K */
    bool rows;       /* B's rows are those of memory */
};

static matrix b_of(const product &p) { return matrix{p.b, element_bytes(p.of), p.columns, p.rows}; }
static matrix a_of(const product &p) { return matrix{p.a_at, element_bytes(p.of), M, false}; }

/* Where element (k, n) of B lies, or (n, k) of A: the start, the offset within the layout, then the
 * swizzle, which exchanges pieces by address. Swizzled rows have 8, 4 or 2 pieces, others one.
 *
 *     of columns (K-major)   8 columns of B are 8 rows of memory, one behind the other; the next 8
 *                            lie a stride behind. Without swizzle K's second piece lies the leading
 *                            offset behind.
 *     of rows (MN-major)     8 rows of B likewise, the next 8 a stride behind; columns beyond a row
 *                            of memory lie the leading offset behind. Without swizzle the two are
 *                            exchanged. */
static const unsigned char *element(const matrix &m, unsigned k, unsigned n)
{
    const uint64_t b = m.at;
    const unsigned bytes = m.bytes, in_piece = PIECE / bytes;
    const uint32_t start = field(b, 0, 14) * PIECE, leading = field(b, 16, 14) * PIECE;
    const uint32_t stride = field(b, 32, 14) * PIECE, base = field(b, 49, 3);
    const uint32_t mode = field(b, 62, 2), pieces = mode == 0 ? 1 : 16u >> mode;
    if (base != 0) simt_refuse("a base offset in a descriptor of wgmma");
    uint32_t at = start;
    if (!m.rows) {
        at += n % EIGHT * pieces * PIECE + n / EIGHT * stride + k % in_piece * bytes;
        at += k / in_piece * (mode == 0 ? leading : (uint32_t)PIECE);
    } else {
        uint32_t piece = n / in_piece;
        at += n % in_piece * bytes + piece % pieces * PIECE + k % EIGHT * pieces * PIECE;
        at += piece / pieces * (mode == 0 ? stride : leading);
        at += k / EIGHT * (mode == 0 ? leading : stride);
    }
    at ^= (at >> 7 & (pieces - 1)) << 4;
    uint32_t offset = at - DYNAMIC_AT;
    if (offset >= SHARED_BYTES) simt_refuse("an operand of wgmma outside of shared memory");
    return simt_shared() + offset;
}

/* Does something for all pieces of an operand, each with the place of its first element. */
template <class F> static void visit_pieces(const matrix &m, const F &visit)
{
    const unsigned in_piece = PIECE / m.bytes;
    for (unsigned k = 0; k < K_BYTES / m.bytes; k += m.rows ? 1 : in_piece)
        for (unsigned n = 0; n < m.others; n += m.rows ? in_piece : 1)
            visit(element(m, k, n), k, n);
}

/* Tells the strict checks of all pieces that a product reads. `issued`: its phase, or 0. */
static void touch_operand(const matrix &m, uint32_t issued)
{
    visit_pieces(m, [=](const unsigned char *at, unsigned, unsigned) {
        if (issued != 0 && simt_written_since(at, PIECE, issued))
            simt_refuse("an operand of wgmma changed while a product was under way");
        simt_touch(at, PIECE, SIMT_OPERAND);
    });
}
static void touch_operands(const product &p, uint32_t issued)
{
    touch_operand(b_of(p), issued);
    if (p.a_shared) touch_operand(a_of(p), issued);
}

/* ---- products -------------------------------------------------------------------------------- */

void simt_group_multiply(float *d, unsigned columns, const uint32_t *a, uint64_t a_at, uint64_t b,
                         bool adds, bool rows, simt_operands of, int line)
{
    member *m = &members[threadIdx.x];
    size_t n = columns / 2; /* accumulators of a thread */
    if (gpu_compute(simt_seen.g) != 90) simt_refuse("wgmma on a device that has none");
    if (blockDim.x % GROUP != 0) simt_refuse("wgmma in a block of no whole warpgroups");
    if (!m->fenced) simt_refuse("wgmma without a fence before it");
    if (a) check_operand(m, a, 4 * sizeof *a);
    if (accumulator *under_way = find_under_way(m, d)) {
        if (under_way->n != n) simt_refuse("wgmma of two shapes with one accumulator");
        check_junk(*under_way);
    } else {
        accumulator now = {d, (unsigned)n, {0}};
        check_operand(m, d, n * sizeof *d);
        memcpy(now.values, d, n * sizeof *d);
        m->under_way.push_back(now);
        memset((void *)d, JUNK, n * sizeof *d);
    }
    product p = {d, columns, {0}, a == NULL, a_at, b, adds, rows, of, line, OPEN, simt_seen.now};
    if (a) memcpy(p.a, a, sizeof p.a);
    m->products.push_back(p);
    if (threadIdx.x % GROUP == 0) touch_operands(p, 0);
    simt_asked.operations += (uint64_t)2 * M * columns * (K_BYTES / element_bytes(of)) / GROUP;
}

/* "Register Fragments": warp w has rows 16 w to 16 w + 15; registers hold two neighbouring columns,
 * those of rows 8 below come next, then the next 8 columns. */
static unsigned fragment_row(unsigned thread, unsigned i)
{
    return thread / WARP * 16 + thread % WARP / 4 + i / 2 % 2 * 8;
}
static unsigned fragment_column(unsigned thread, unsigned i)
{
    return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

/* A register of 8-bit A holds four neighbouring columns; those of rows 8 below come next, then the
 * next 16 columns. */
static unsigned byte_row(unsigned thread, unsigned i) { return fragment_row(thread, i / 2); }
static unsigned byte_column(unsigned thread, unsigned i)
{
    return i / 8 * 16 + thread % 4 * 4 + i % 4;
}

static float read_element(const void *p, simt_operands of)
{
    uint16_t bits;
    if (of == SIMT_E4M3) return to_float(e4m3{*(const uint8_t *)p});
    memcpy(&bits, p, sizeof bits);
    return of == SIMT_F16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

/* Puts a thread's registers of A into the rows of all. */
static void spread(unsigned thread, const product &p, float a[M][K_MOST])
{
    const unsigned bytes = element_bytes(p.of);
    for (unsigned i = 0; i < sizeof p.a / bytes; i++) {
        unsigned row = bytes == 1 ? byte_row(thread, i) : fragment_row(thread, i);
        unsigned column = bytes == 1 ? byte_column(thread, i) : fragment_column(thread, i);
        a[row][column] = read_element((const char *)p.a + i * bytes, p.of);
    }
}

/* Tells of all elements of an operand and their places (k, n). */
template <class F> static void read_operand(const matrix &m, simt_operands of, const F &put)
{
    visit_pieces(m, [&](const unsigned char *at, unsigned k, unsigned n) {
        for (unsigned i = 0; i < PIECE / m.bytes; i++)
            put(m.rows ? k : k + i, m.rows ? n + i : n, read_element(at + i * m.bytes, of));
    });
}

/* Adds the products of a row of A and of B's columns from n on, by k. */
static void multiply_row(const float *a, const float (*b)[N_MOST], unsigned n, unsigned k, float *d)
{
    float sums[EIGHT];
    memcpy(sums, d + n, sizeof sums);
    for (unsigned i = 0; i < k; i++) {
        const float *of_b = b[i] + n;
        for (unsigned j = 0; j < EIGHT; j++) sums[j] += a[i] * of_b[j];
    }
    memcpy(d + n, sums, sizeof sums);
}

/* Computes product i of a warpgroup's threads. */
static void compute(unsigned first, size_t i)
{
    static float a[M][K_MOST], b[K_MOST][N_MOST], d[M][N_MOST];
    const product &p = members[first].products[i];
    const unsigned all = K_BYTES / element_bytes(p.of);
    touch_operands(p, p.phase);
    read_operand(b_of(p), p.of, [&](unsigned k, unsigned n, float x) { b[k][n] = x; });
    if (p.a_shared)
        read_operand(a_of(p), p.of, [&](unsigned k, unsigned row, float x) { a[row][k] = x; });
    for (unsigned t = 0; t < GROUP; t++) {
        member *m = &members[first + t];
        const product &q = m->products[i];
        if (q.b != p.b || q.line != p.line || q.columns != p.columns || q.adds != p.adds ||
            q.of != p.of || q.a_at != p.a_at)
            simt_refuse("threads of a warpgroup make different products");
        const float *values = find_under_way(m, q.d)->values;
        if (!p.a_shared) spread(t, q, a);
        for (unsigned e = 0; e < p.columns / 2; e++)
            d[fragment_row(t, e)][fragment_column(t, e)] = p.adds ? values[e] : 0.0f;
    }
    for (unsigned row = 0; row < M; row++)
        for (unsigned n = 0; n < p.columns; n += EIGHT) multiply_row(a[row], b, n, all, d[row]);
    for (unsigned t = 0; t < GROUP; t++) {
        member *m = &members[first + t];
        float *values = find_under_way(m, m->products[i].d)->values;
        for (unsigned e = 0; e < p.columns / 2; e++)
            values[e] = d[fragment_row(t, e)][fragment_column(t, e)];
    }
}

/* Gives a thread the results of its first n products; an accumulator of later ones stays junk. */
static void deliver(member *m, size_t n)
{
    size_t kept = 0;
    m->products.erase(m->products.begin(), m->products.begin() + (long)n);
    for (accumulator &a : m->under_way) {
        bool later = false;
        for (const product &p : m->products) later |= p.d == a.d;
        check_junk(a);
        if (later) m->under_way[kept++] = a;
        else memcpy((void *)a.d, a.values, a.n * sizeof *a.d);
    }
    m->under_way.resize(kept);
    m->fenced = false;
}

static void complete(unsigned first, unsigned left)
{
    const member &one = members[first];
    size_t n = 0;
    while (n < one.products.size() && one.products[n].group != OPEN &&
           one.products[n].group + (long)left < one.n_groups)
        n++;
    for (unsigned t = 1; t < GROUP; t++)
        if (members[first + t].products.size() != one.products.size() ||
            members[first + t].n_groups != one.n_groups)
            simt_refuse("threads of a warpgroup make different products");
    for (size_t i = 0; i < n; i++) compute(first, i);
    for (unsigned t = 0; t < GROUP; t++) deliver(&members[first + t], n);
}

void simt_group_wait(unsigned left, int line)
{
    unsigned first = threadIdx.x / GROUP * GROUP;
    simt_meet_group(line, [=]() { complete(first, left); });
}

void simt_group_ends(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (!members[i].products.empty()) simt_refuse("a block ends while a product is under way");
        members[i].operands.clear();
        members[i].n_groups = 0;
        members[i].fenced = false;
    }
}
