/* Vectors of doubles, as wide as the instructions that this is compiled for. */
#ifndef SLOTMESH_LANES_H
#define SLOTMESH_LANES_H

#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 8
#elif defined(__AVX__)
#define LANES 4
#else
#define LANES 2
#endif

typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t ivec __attribute__((vector_size(8 * LANES)));
#endif
