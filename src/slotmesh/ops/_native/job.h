/* What Python asks for, and the threads that do it. */
#ifndef SLOTMESH_JOB_H
#define SLOTMESH_JOB_H

#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* What Python calls has the level of instructions in its name: recipe.py defines LEVEL. */
#define JOINED(name, level) name##_##level
#define WITH_LEVEL(name, level) JOINED(name, level)
#define EXPORTED(name) WITH_LEVEL(slotmesh_##name, LEVEL)

/* Mirrored in __init__.py. What may be NULL is marked so. */
typedef struct {
    int64_t batch, m, n, n_iters, n_steps, fresh, threads;
    /* The GOMP_parallel of torch's own threads: others would fight with them. Or NULL. */
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    float tau, length;           /* where taus or lengths are NULL */
    const float *cost, *a, *b;   /* (batch, m, n), (batch, m), (batch, n) */
    const uint8_t *slots;        /* (batch, m), or NULL */
    const float *taus, *lengths; /* (batch), or NULL */
    float *start;                /* (batch, m), potentials; those after the descent, if any */
    uint8_t *easy;               /* (batch), which to solve; becomes which are solved */
    /* forward */
    float *changed;              /* (batch, m, n), or NULL */
    float *plan, *u, *v;
    /* backward, where easy may be NULL, too: all */
    const float *by_plan, *by_u, *by_v;       /* or NULL */
    float *by_cost;
    float *by_a, *by_b, *by_tau, *by_start;   /* or NULL */
} job;

/* One of the arrays that memory is cut into, of w; bytes are counted in used. */
#define ARRAY(name, count)                                                         \
    do {                                                                           \
        if (memory) w->name = (void *)(memory + used);                             \
        used += ((size_t)(count) * sizeof(*w->name) + 63) / 64 * 64;               \
    } while (0)

/* What is done to one batch element, with memory of its thread that holds anything at first. */
typedef void element(const job *, char *memory, int64_t e);

/* Every element, each by the first thread that is free; returns 0, or 1 without memory. */
int slotmesh_spread(const job *o, element *one, size_t bytes);

#endif
