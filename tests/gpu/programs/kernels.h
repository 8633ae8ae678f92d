/* The kit's kernels, as PTX that the driver compiles: no nvcc is needed. Turing (sm_75) and newer.
 *
 *   empty            ends at once
 *   busy(out, n)     n rounds of dependent multiply-adds; writes nothing unless a sum is zero, which it never is
 *   LARGE            a module with 8 MiB of its own
 */
#define HEAD ".version 6.4\n.target sm_75\n.address_size 64\n"
static const char KERNELS[] = HEAD
    ".visible .entry empty() { ret; }\n"
    ".visible .entry busy(.param .u64 out, .param .u32 rounds)\n"
    "{\n"
    "  .reg .pred p; .reg .u32 n, i; .reg .f32 a, b; .reg .u64 o;\n"
    "  ld.param.u64 o, [out];\n"
    "  ld.param.u32 n, [rounds];\n"
    "  mov.f32 a, 0f3F000000; mov.f32 b, 0f3E800000; mov.u32 i, 0;\n"
    "again:\n"
    "  fma.rn.f32 a, a, a, b; fma.rn.f32 a, a, a, b; fma.rn.f32 a, a, a, b; fma.rn.f32 a, a, a, b;\n"
    "  add.u32 i, i, 1;\n"
    "  setp.lt.u32 p, i, n;\n"
    "  @p bra again;\n"
    "  setp.eq.f32 p, a, 0f00000000;\n"
    "  @p st.global.f32 [o], a;\n"
    "  ret;\n"
    "}\n";
static const char LARGE[] __attribute__((unused)) = HEAD
    ".visible .global .align 8 .b8 table[8388608];\n"
    ".visible .entry reads(.param .u64 out)\n"
    "{\n"
    "  .reg .u64 o, t; .reg .u32 v;\n"
    "  ld.param.u64 o, [out]; mov.u64 t, table; ld.global.u32 v, [t]; st.global.u32 [o], v; ret;\n"
    "}\n";
