/* kernels/cuda, private: products of a warpgroup (wgmma), which compute capability 9.0 alone has.
 * Only files whose code is for sm_90a include it. */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/simt.cuh"

enum { WARPGROUP = 128 /* threads */ };

#ifndef OCTAVO_SIMT /* tests/simt/simt.h has the same for the CPU */
DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
/* wgmma sees what this thread has written to shared memory, once all threads of the block have
 * called this and met at a barrier. */
DEVICE void fence_operands() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* Registers that this thread wrote so far may be operands of wgmma. */
DEVICE void group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits until all but the last `left` committed groups of products are done. */
template <int left> DEVICE void group_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/* The registers of d [64, 8 n], and their names in the text of an instruction. */
#define GROUP_D(d, n)   "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define GROUP_D4(d, n)  GROUP_D(d, n), GROUP_D(d, n + 1), GROUP_D(d, n + 2), GROUP_D(d, n + 3)
#define GROUP_D8(d, n)  GROUP_D4(d, n), GROUP_D4(d, n + 4)
#define GROUP_D12(d, n) GROUP_D8(d, n), GROUP_D4(d, n + 8)
#define GROUP_D16(d, n) GROUP_D8(d, n), GROUP_D8(d, n + 8)
#define GROUP_D32(d, n) GROUP_D16(d, n), GROUP_D16(d, n + 16)
#define GROUP_16        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define GROUP_32        GROUP_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GROUP_48        GROUP_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define GROUP_64        GROUP_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define GROUP_128                                                                                  \
    GROUP_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                    \
             ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"                    \
             ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"        \
             ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
/* The instruction of a shape and a type of operands. The other arguments name the sums, a, b,
 * whether it adds to the sums, and the orders of rows and columns. */
#define GROUP_TEXT(shape, of, sums, a, b, adds, orders)                                            \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\n"                                              \
    "wgmma.mma_async.sync.aligned." shape ".f32." of "." of " {" sums "}, " a ", " b               \
    ", p, 1, 1" orders ";\n}"
#define GROUP_A(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/* d [64, N] = a [64, 16] * b [16, N], added to d where it `adds`, for N of 64, 96, 128 and 256. b
 * is what group_operand makes; where it is of ROWS, its 16 rows are those of memory, and otherwise
 * its columns are. */
#define MULTIPLY_GROUP(of, eights, shape, registers, sums, in_a, in_b, in_adds, in_rows)           \
    template <bool ROWS>                                                                           \
    DEVICE void multiply_group(float(&d)[eights][4], const uint32_t a[4], uint64_t b, bool adds,   \
                               of)                                                                 \
    {                                                                                              \
        asm volatile(GROUP_TEXT(shape, #of, sums, in_a, in_b, in_adds, ", " in_rows)               \
                     : registers                                                                   \
                     : GROUP_A(a), "l"(b), "r"((int)adds), "n"((int)ROWS)                          \
                     : "memory");                                                                  \
    }
#define MULTIPLY_GROUPS(of)                                                                        \
    MULTIPLY_GROUP(of, 8, "m64n64k16", GROUP_D8(d, 0), GROUP_32, "{%32,%33,%34,%35}", "%36",       \
                   "%37", "%38")                                                                   \
    MULTIPLY_GROUP(of, 12, "m64n96k16", GROUP_D12(d, 0), GROUP_48, "{%48,%49,%50,%51}", "%52",     \
                   "%53", "%54")                                                                   \
    MULTIPLY_GROUP(of, 16, "m64n128k16", GROUP_D16(d, 0), GROUP_64, "{%64,%65,%66,%67}", "%68",    \
                   "%69", "%70")                                                                   \
    MULTIPLY_GROUP(of, 32, "m64n256k16", GROUP_D32(d, 0), GROUP_128, "{%128,%129,%130,%131}",      \
                   "%132", "%133", "%134")                                                         \
    /* d [64, 32] likewise, with the rows of a in shared memory, as the columns of b are. */       \
    DEVICE void multiply_group(float(&d)[4][4], uint64_t a, uint64_t b, bool adds, of)             \
    {                                                                                              \
        asm volatile(GROUP_TEXT("m64n32k16", #of, GROUP_16, "%16", "%17", "%18", ", 0, 0")         \
                     : GROUP_D4(d, 0)                                                              \
                     : "l"(a), "l"(b), "r"((int)adds)                                              \
                     : "memory");                                                                  \
    }
MULTIPLY_GROUPS(bf16)
MULTIPLY_GROUPS(f16)

/* Starts such a product of a [64, 32] and b [32, 64] of e4m3. The columns of b are always rows of
 * memory. Sums have fewer bits than f32 has. */
DEVICE void multiply_group(float (&d)[8][4], const uint32_t a[4], uint64_t b, bool adds, e4m3)
{
    asm volatile(GROUP_TEXT("m64n64k32", "e4m3", GROUP_32, "{%32,%33,%34,%35}", "%36", "%37", "")
                 : GROUP_D8(d, 0)
                 : GROUP_A(a), "l"(b), "r"((int)adds)
                 : "memory");
}
#endif

/* A matrix descriptor of wgmma: each row has 128 bytes, 64 elements of 16 bits or 128 of 8, whose
 * pieces of 16 bytes are swizzled: piece c of row r lies at c ^ r % 8. The next 8 rows lie `eight`
 * bytes behind, and, where the matrix is of ROWS, the next 64 columns `columns` bytes. Adding n
 * >> 4 to a descriptor moves its start by n bytes. All rows begin at a multiple of 1024 bytes. */
DEVICE uint64_t group_operand(const void *shared, uint32_t columns, uint32_t eight)
{
    enum { SWIZZLE_128 = 1, SWIZZLE_AT = 62, COLUMNS_AT = 16, EIGHT_AT = 32, UNIT = 16 };
    return (uint64_t)(shared_address(shared) % (1 << 18) / UNIT) |
           (uint64_t)(columns / UNIT) << COLUMNS_AT | (uint64_t)(eight / UNIT) << EIGHT_AT |
           (uint64_t)SWIZZLE_128 << SWIZZLE_AT;
}

#endif
