/* The gradient of a plan that is treated as converged: mathematics of _implicit.py.
 *
 * The unknowns of the inputs are eliminated, which leaves a small system of the slots. Everything is
 * in double precision: where a plan is nearly one-hot, the system is nearly singular.
 */
#include <math.h>
#include <string.h>

#include "job.h"

#if defined(__AVX512F__)
#define LANES 8
#elif defined(__AVX__)
#define LANES 4
#else
#define LANES 2
#endif

typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t ivec __attribute__((vector_size(8 * LANES)));
typedef float narrow __attribute__((vector_size(4 * LANES)));

/* Per thread. */
typedef struct {
    vec *p, *weight, *right; /* (m), of some columns: the plan, it times its gradient; a sum */
    vec *common;             /* (m, m), lower triangle: mass that two slots share, a sum */
    double *system;          /* (m, m), lower triangle */
    double *x, *root, *over; /* (m): the unknowns, roots of masses and one over them */
    vec whole, into, share;  /* sums of weights: of all, of a column; one over the column's mass */
} work;

/* Some numbers of a row, 0 after its end. */
INLINE vec get(const float *x, int64_t left) {
    narrow y = {0};
    if (left >= LANES)
        memcpy(&y, x, sizeof(y));
    else
        memcpy(&y, x, left * sizeof(float));
    return __builtin_convertvector(y, vec);
}

INLINE void put(float *x, vec y, int64_t left) {
    narrow z = __builtin_convertvector(y, narrow);
    memcpy(x, &z, (left < LANES ? left : LANES) * sizeof(float));
}

INLINE vec where(ivec mask, vec x) { return (vec)(mask & (ivec)x); }

static double sum(vec x) {
    double total = 0;
    for (int k = 0; k < LANES; k++) total += x[k];
    return total;
}

/* The columns from j on. Entries without mass may have any gradient; NaN stays NaN. */
INLINE void read_columns(const job *o, work *w, int64_t e, int64_t j) {
    const int64_t n = o->n, left = n - j;
    const float *plan = o->plan + e * o->m * n + j, *grad = o->grad_plan + e * o->m * n + j;
    vec mass = {0};
    w->into = (vec){0};
    for (int64_t i = 0; i < o->m; i++) {
        w->p[i] = get(plan + i * n, left);
        w->weight[i] = where(w->p[i] != 0, w->p[i] * get(grad + i * n, left));
        mass += w->p[i];
        w->into += w->weight[i];
    }
    w->share = where(mass != 0, 1 / mass);
}

static void gather(const job *o, work *w, int64_t e) {
    const int64_t m = o->m;
    memset(w->common, 0, m * m * sizeof(vec));
    memset(w->right, 0, m * sizeof(vec));
    w->whole = (vec){0};
    for (int64_t j = 0; j < o->n; j += LANES) {
        read_columns(o, w, e, j);
        w->whole += w->into;
        for (int64_t i = 0; i < m; i++) {
            const vec part = w->p[i] * w->share;
            w->right[i] += w->weight[i] - part * w->into;
            for (int64_t k = 0; k <= i; k++) w->common[i * m + k] += part * w->p[k];
        }
    }
}

/* Cholesky's factors in place of a lower triangle, then the solution in place of x. */
static void eliminate(double *A, double *x, int64_t m) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t k = 0; k <= i; k++) {
            double total = A[i * m + k];
            for (int64_t l = 0; l < k; l++) total -= A[i * m + l] * A[k * m + l];
            A[i * m + k] = k < i ? total / A[k * m + k] : sqrt(total);
            if (k < i) x[i] -= A[i * m + k] * x[k];
        }
        x[i] /= A[i * m + i];
    }
    for (int64_t i = m - 1; i >= 0; i--) {
        x[i] /= A[i * m + i];
        for (int64_t k = 0; k < i; k++) x[k] -= A[i * m + k] * x[i];
    }
}

/* The system, scaled to a unit diagonal. A constant moved from inputs to slots changes nothing:
 * that direction is fixed, and then chosen so that the total of b has no effect.
 */
static void solve(work *w, int64_t m) {
    double total = 0, moved = 0;
    memset(w->root, 0, m * sizeof(double));
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k <= i; k++) {
            const double shared = sum(w->common[i * m + k]);
            w->system[i * m + k] = shared;
            w->root[i] += shared;
            if (k < i) w->root[k] += shared;
        }
    for (int64_t i = 0; i < m; i++) {
        total += w->root[i];
        w->root[i] = sqrt(w->root[i]);
        w->over[i] = w->root[i] == 0 ? 0 : 1 / w->root[i];
        w->x[i] = w->over[i] * sum(w->right[i]);
    }
    total = total == 0 ? 1 : total;
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k <= i; k++) {
            double *entry = &w->system[i * m + k];
            *entry = w->root[i] * w->root[k] / total - *entry * w->over[i] * w->over[k];
            if (k == i) *entry += 1 + 1e-12;
        }
    eliminate(w->system, w->x, m);
    for (int64_t i = 0; i < m; i++) {
        w->x[i] *= w->over[i];
        moved += w->root[i] * w->root[i] * w->x[i];
    }
    for (int64_t i = 0; i < m; i++)
        if (w->root[i] != 0) w->x[i] += (sum(w->whole) - moved) / total;
}

static void apply(const job *o, work *w, int64_t e) {
    const int64_t m = o->m, n = o->n;
    const double tau = o->taus ? o->taus[e] : o->tau;
    const float *cost = o->cost + e * m * n;
    float *grad_cost = o->grad_cost + e * m * n;
    vec grad_tau = {0};
    for (int64_t j = 0; j < n; j += LANES) {
        read_columns(o, w, e, j);
        vec y = w->into;
        for (int64_t i = 0; i < m; i++) y -= w->p[i] * w->x[i];
        y *= w->share;
        for (int64_t i = 0; i < m; i++) {
            const vec x = (w->p[i] * (y + w->x[i]) - w->weight[i]) / tau;
            put(grad_cost + i * n + j, x, n - j);
            if (o->grad_tau) grad_tau -= x * get(cost + i * n + j, n - j);
        }
        if (o->grad_b) put(o->grad_b + e * n + j, y, n - j);
    }
    if (o->grad_tau) o->grad_tau[e] = sum(grad_tau) / tau;
    if (o->grad_a)
        for (int64_t i = 0; i < m; i++) o->grad_a[e * m + i] = w->x[i];
}

/* Cuts memory into arrays, or counts the bytes if it is NULL. */
static size_t lay_out(const job *o, work *w, char *memory) {
    size_t used = 0;
    ARRAY(p, o->m);
    ARRAY(weight, o->m);
    ARRAY(right, o->m);
    ARRAY(common, o->m * o->m);
    ARRAY(system, o->m * o->m);
    ARRAY(x, o->m);
    ARRAY(root, o->m);
    ARRAY(over, o->m);
    return used;
}

static void adjoint(const job *o, char *memory, int64_t e) {
    work w = {0};
    lay_out(o, &w, memory);
    gather(o, &w, e);
    solve(&w, o->m);
    apply(o, &w, e);
}

int EXPORTED(adjoint)(const job *o) {
    return slotmesh_spread(o, adjoint, lay_out(o, &(work){0}, NULL));
}
