/* Which instruction level of recipe.py to call. */

/* The highest one that this processor and its system support. */
const char *slotmesh_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"))
            return "avx512";
        return "avx2";
    }
#endif
    return "baseline";
}
