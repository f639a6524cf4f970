/* Vectors of LANES numbers, converted to another type. */
#ifndef SLOTMESH_CONVERT_H
#define SLOTMESH_CONVERT_H

#if defined(__clang__) || __GNUC__ >= 9
#define CONVERTED(x, type) __builtin_convertvector(x, type)
#else /* gcc 8, that of Red Hat Enterprise Linux 8 */
#define CONVERTED(x, type)                                              \
    ({                                                                  \
        __typeof__(x) from = (x);                                       \
        type to;                                                        \
        for (int lane = 0; lane < LANES; lane++) to[lane] = from[lane]; \
        to;                                                             \
    })
#endif

#endif
