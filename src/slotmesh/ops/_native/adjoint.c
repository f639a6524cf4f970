/* The gradient of a plan that is treated as converged: mathematics of _implicit.py.
 *
 * The unknowns of the inputs are eliminated, which leaves a system of the slots. Everything is in
 * double precision: where a plan is nearly one-hot, the system is nearly singular.
 *
 * Of few slots, the mass that two share is summed as columns are read. Of many, columns are kept, some
 * at a time, and multiplied in blocks that stay in registers; Cholesky's factors likewise.
 */
#include <math.h>
#include <string.h>

#include "job.h"
#include "lanes.h"

typedef float narrow __attribute__((vector_size(4 * LANES)));

#define FEW 32    /* slots */
#define KEPT 64   /* columns at a time, of many slots: those of a block stay in the cache */
/* Slots of a block, whose sums stay in registers. */
#define WIDE (3 * LANES)
#define HIGH LANES

/* Per thread. */
typedef struct {
    int64_t width, stride;   /* of the system: of many slots, whole blocks and a line of the cache */
    vec *p, *weight, *right; /* (m), of some columns: the plan, it times its gradient; a sum */
    vec *mass;               /* (m), a sum */
    vec *common;             /* (m, m), lower triangle: mass that two slots share, a sum; of few */
    double *kept;            /* (KEPT, stride), columns over the roots of their masses; of many */
    double *system;          /* (width, stride), upper triangle */
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

/* Adds sign times A^T A to a block of the system, where A has some rows of length stride. */
static void add_block(double *to, const double *A, int64_t rows, int64_t stride, int64_t i,
                      int64_t k, double sign) {
    vec total[HIGH][WIDE / LANES] = {0};
    for (int64_t row = 0; row < rows; row++) {
        const double *left = A + row * stride + i, *right = A + row * stride + k;
        vec other[WIDE / LANES];
        memcpy(other, right, sizeof(other));
#pragma GCC unroll 8
        for (int y = 0; y < HIGH; y++)
#pragma GCC unroll 8
            for (int x = 0; x < WIDE / LANES; x++) total[y][x] += other[x] * left[y];
    }
#pragma GCC unroll 8
    for (int y = 0; y < HIGH; y++)
#pragma GCC unroll 8
        for (int x = 0; x < WIDE / LANES; x++) {
            vec sum;
            double *entry = to + (i + y) * stride + k + x * LANES;
            memcpy(&sum, entry, sizeof(sum));
            sum += sign * total[y][x];
            memcpy(entry, &sum, sizeof(sum));
        }
}

/* All of the upper triangle, and what else is in its blocks. */
static void add_product(work *w, int64_t rows) {
    for (int64_t k = 0; k < w->width; k += WIDE)
        for (int64_t i = 0; i < k + WIDE; i += HIGH)
            add_block(w->system, w->kept, rows, w->stride, i, k, 1);
}

static void gather(const job *o, work *w, int64_t e) {
    const int64_t m = o->m;
    int64_t filled = 0;
    if (m <= FEW) memset(w->common, 0, m * m * sizeof(vec));
    memset(w->system, 0, w->width * w->stride * sizeof(double));
    memset(w->right, 0, m * sizeof(vec));
    memset(w->mass, 0, m * sizeof(vec));
    w->whole = (vec){0};
    for (int64_t j = 0; j < o->n; j += LANES) {
        read_columns(o, w, e, j);
        w->whole += w->into;
        if (m <= FEW) {
            for (int64_t i = 0; i < m; i++) {
                const vec part = w->p[i] * w->share;
                w->mass[i] += w->p[i];
                w->right[i] += w->weight[i] - part * w->into;
                for (int64_t k = 0; k <= i; k++) w->common[i * m + k] += part * w->p[k];
            }
            continue;
        }
        vec over;
        for (int l = 0; l < LANES; l++) over[l] = sqrt(w->share[l]);
        for (int64_t i = 0; i < m; i++) {
            const vec part = w->p[i] * over;
            w->mass[i] += w->p[i];
            w->right[i] += w->weight[i] - w->p[i] * w->share * w->into;
            for (int l = 0; l < LANES; l++) w->kept[(filled + l) * w->stride + i] = part[l];
        }
        filled += LANES;
        if (filled == KEPT || j + LANES >= o->n) {
            add_product(w, filled);
            filled = 0;
        }
    }
    if (m <= FEW)
        for (int64_t i = 0; i < m; i++)
            for (int64_t k = 0; k <= i; k++) w->system[k * m + i] = sum(w->common[i * m + k]);
}

/* Some rows of Cholesky's factor, an upper triangle in place of A; those before are done. */
static void factor_rows(double *A, int64_t first, int64_t end, int64_t m, int64_t stride) {
    for (int64_t i = first; i < end; i++) {
        double *row = A + i * stride;
        for (int64_t l = first; l < i; l++) {
            const double *before = A + l * stride, factor = before[i];
            for (int64_t k = i; k < m; k++) row[k] -= factor * before[k];
        }
        const double scale = 1 / sqrt(row[i]);
        for (int64_t k = i; k < m; k++) row[k] *= scale;
    }
}

/* Cholesky's factor in place of an upper triangle, then the solution in place of x. */
static void eliminate(double *A, double *x, int64_t m, int64_t stride) {
    const int64_t high = m <= FEW ? m : HIGH;
    for (int64_t i = 0; i < m; i += high) {
        for (int64_t k = i / WIDE * WIDE; i > 0 && k < m; k += WIDE)
            add_block(A, A, i, stride, i, k, -1);
        factor_rows(A, i, i + high < m ? i + high : m, m, stride);
    }
    for (int64_t i = 0; i < m; i++) {
        x[i] /= A[i * stride + i];
        for (int64_t k = i + 1; k < m; k++) x[k] -= A[i * stride + k] * x[i];
    }
    for (int64_t i = m - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < m; k++) x[i] -= A[i * stride + k] * x[k];
        x[i] /= A[i * stride + i];
    }
}

/* The system, scaled to a unit diagonal. A constant moved from inputs to slots changes nothing:
 * that direction is fixed, and then chosen so that the total of b has no effect.
 */
static void solve(work *w, int64_t m) {
    double total = 0, moved = 0;
    for (int64_t i = 0; i < m; i++) {
        const double mass = sum(w->mass[i]);
        total += mass;
        w->root[i] = sqrt(mass);
        w->over[i] = mass == 0 ? 0 : 1 / w->root[i];
        w->x[i] = w->over[i] * sum(w->right[i]);
    }
    total = total == 0 ? 1 : total;
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = i; k < m; k++) {
            double *entry = &w->system[i * w->stride + k];
            *entry = w->root[i] * w->root[k] / total - *entry * w->over[i] * w->over[k];
            if (k == i) *entry += 1 + 1e-12;
        }
    eliminate(w->system, w->x, m, w->stride);
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
    const int many = o->m > FEW;
    w->width = many ? (o->m + WIDE - 1) / WIDE * WIDE : o->m;
    /* Rows whose distance is a power of two compete for the same place in the cache. */
    w->stride = many ? w->width + 8 : o->m;
    ARRAY(p, o->m);
    ARRAY(weight, o->m);
    ARRAY(right, o->m);
    ARRAY(mass, o->m);
    ARRAY(common, many ? 0 : o->m * o->m);
    ARRAY(kept, many ? KEPT * w->stride : 0);
    ARRAY(system, w->width * w->stride);
    ARRAY(x, o->m);
    ARRAY(root, o->m);
    ARRAY(over, o->m);
    return used;
}

static void adjoint(const job *o, char *memory, int64_t e) {
    work w = {0};
    lay_out(o, &w, memory);
    /* Blocks read what is after the last slot. */
    if (o->m > FEW) memset(w.kept, 0, KEPT * w.stride * sizeof(double));
    gather(o, &w, e);
    solve(&w, o->m);
    apply(o, &w, e);
}

int EXPORTED(adjoint)(const job *o) {
    return slotmesh_spread(o, adjoint, lay_out(o, &(work){0}, NULL));
}
