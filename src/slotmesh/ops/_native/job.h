/* The request of Python, and the threads that carry it out. */
#ifndef SLOTMESH_JOB_H
#define SLOTMESH_JOB_H

#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* Functions that Python calls have the instruction level in their name: recipe.py defines LEVEL. */
#define JOINED(name, level) name##_##level
#define WITH_LEVEL(name, level) JOINED(name, level)
#define EXPORTED(name) WITH_LEVEL(slotmesh_##name, LEVEL)

/* Mirrored in __init__.py. What may be NULL is marked so. */
typedef struct {
    int64_t batch, m, n, n_iters, n_steps, fresh, threads;
    /* GOMP_parallel of torch's own threads, with which others would compete; or NULL. */
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    float tau, length;           /* if taus or lengths are NULL */
    const float *cost, *a, *b;   /* (batch, m, n), (batch, m), (batch, n) */
    const uint8_t *slots;        /* (batch, m), or NULL */
    const float *taus, *lengths; /* (batch), or NULL */
    float *start;                /* (batch, m), potentials; after the steps, if any */
    uint8_t *easy;               /* (batch), which to solve; becomes which are solved */
    /* forward */
    float *changed;              /* (batch, m, n), or NULL */
    float *plan, *u, *v;
    /* backward, where easy may be NULL for all */
    const float *grad_plan, *grad_u, *grad_v;       /* or NULL */
    float *grad_cost;
    float *grad_a, *grad_b, *grad_tau, *grad_start;   /* or NULL */
} job;

/* One of the arrays that memory is cut into, of w; bytes are counted in used. */
#define ARRAY(name, count)                                                         \
    do {                                                                           \
        if (memory) w->name = (void *)(memory + used);                             \
        used += ((size_t)(count) * sizeof(*w->name) + 63) / 64 * 64;               \
    } while (0)

/* The work on one batch element, with uninitialised memory of its thread. */
typedef void element(const job *, char *memory, int64_t e);

/* Every element, each by the first free thread; returns 0, or 1 if there is not enough memory. */
int slotmesh_spread(const job *o, element *one, size_t bytes);

#endif
