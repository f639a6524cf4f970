/* The gradient of a plan that is treated as converged: mathematics of _implicit.py.
 *
 * The unknowns of the inputs are eliminated, which leaves a system of the slots. Everything is in
 * double precision: where a plan is nearly one-hot, the system is nearly singular.
 *
 * With few slots, the mass that two slots share is summed while columns are read. With many slots,
 * some columns at a time are kept and multiplied in blocks that stay in registers, as is Cholesky's
 * factor. With even more slots, a plan that is far from one-hot needs no system at all: a few products
 * with the plan, by conjugate gradients, take a tenth of the time.
 */
#include <math.h>
#include <string.h>

#include "convert.h"
#include "job.h"
#include "lanes.h"

typedef float narrow __attribute__((vector_size(4 * LANES)));

#define FEW 32    /* up to this many slots are few */
#define MANY 96   /* from this many slots on, conjugate gradients are faster, */
#define LARGEST (1 << 20) /* if the plan has at most this many entries: each thread copies it */
#define PRODUCTS 40       /* they give up after this many products, */
#define NEARLY_SINGULAR 1e-4 /* or if a direction is stretched by no more than this */
#define ACCURATE 1e-12    /* they stop at this error, relative to the right side */
#define COLUMNS (4 * LANES) /* width of a strip of the copied plan, which stays in the cache */
#define KEPT 64   /* columns kept at a time with many slots: those of a block stay in the cache */
/* Slots of a block, whose sums stay in registers. */
#define WIDE (3 * LANES)
#define HIGH LANES

/* Per thread. */
typedef struct {
    int64_t width, stride;   /* of the system; with many slots, whole blocks and a cache line */
    vec *p, *weight, *right; /* (m), of some columns: the plan, it times its gradient; a sum */
    vec *mass;               /* (m), a sum */
    vec *common;             /* (m, m), lower triangle: mass that two slots share, a sum; if few */
    double *kept;            /* (KEPT, stride), columns over the roots of their masses; if many */
    double *system;          /* (width, stride), upper triangle */
    double *x, *root, *over; /* (m): the unknowns, roots of masses and one over them */
    vec whole, into, share;  /* sums of weights: of all, of a column; one over the column's mass */
    float *strips;           /* (strips, m, COLUMNS), the plan; for conjugate gradients */
    double *shares;          /* (n), one over the masses of columns; likewise, and those below: */
    double *z, *left, *way, *image; /* (m): a solution, what it lacks, a direction, its product */
} work;

/* Some numbers of a row, 0 after its end. */
INLINE vec get(const float *x, int64_t left) {
    narrow y = {0};
    if (left >= LANES)
        memcpy(&y, x, sizeof(y));
    else
        memcpy(&y, x, left * sizeof(float));
    return CONVERTED(y, vec);
}

INLINE void put(float *x, vec y, int64_t left) {
    narrow z = CONVERTED(y, narrow);
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

/* The right side, and the system of it unless it is not needed. */
static void gather(const job *o, work *w, int64_t e, int system) {
    const int64_t m = o->m;
    int64_t filled = 0;
    if (m <= FEW) memset(w->common, 0, m * m * sizeof(vec));
    if (system) memset(w->system, 0, w->width * w->stride * sizeof(double));
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
        if (!system) {
            memcpy(w->shares + j, &w->share, sizeof(vec));
            for (int64_t i = 0; i < m; i++) {
                w->mass[i] += w->p[i];
                w->right[i] += w->weight[i] - w->p[i] * w->share * w->into;
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

static void copy_plan(const job *o, work *w, int64_t e) {
    const float *plan = o->plan + e * o->m * o->n;
    float *to = w->strips;
    for (int64_t j = 0; j < o->n; j += COLUMNS)
        for (int64_t i = 0; i < o->m; i++, to += COLUMNS) {
            const int64_t left = o->n - j;
            if (left >= COLUMNS) {
                memcpy(to, plan + i * o->n + j, COLUMNS * sizeof(float));
            } else {
                memset(to, 0, COLUMNS * sizeof(float));
                memcpy(to, plan + i * o->n + j, left * sizeof(float));
            }
        }
}

INLINE vec widen(const float *x) {
    narrow y;
    memcpy(&y, x, sizeof(y));
    return CONVERTED(y, vec);
}

/* The product of the scaled system with a vector: of the plan with it, and back. */
static void multiply(const job *o, work *w, const double *in, double *out, double total) {
    const int64_t m = o->m;
    const float *strip = w->strips;
    double along = 0;
    for (int64_t i = 0; i < m; i++) {
        out[i] = in[i] * w->over[i];
        along += in[i] * w->root[i];
        w->weight[i] = (vec){0};
    }
    for (int64_t j = 0; j < o->n; j += COLUMNS, strip += m * COLUMNS) {
        vec y[COLUMNS / LANES] = {0};
        for (int64_t i = 0; i < m; i++)
#pragma GCC unroll 4
            for (int k = 0; k < COLUMNS / LANES; k++)
                y[k] += widen(strip + i * COLUMNS + k * LANES) * out[i];
#pragma GCC unroll 4
        for (int k = 0; k < COLUMNS / LANES; k++) {
            vec share;
            memcpy(&share, w->shares + j + k * LANES, sizeof(share));
            y[k] *= share;
        }
        for (int64_t i = 0; i < m; i++) {
            vec total = w->weight[i];
#pragma GCC unroll 4
            for (int k = 0; k < COLUMNS / LANES; k++)
                total += widen(strip + i * COLUMNS + k * LANES) * y[k];
            w->weight[i] = total;
        }
    }
    for (int64_t i = 0; i < m; i++)
        out[i] = (1 + 1e-12) * in[i] - w->over[i] * sum(w->weight[i]) + w->root[i] * along / total;
}

static double product(const double *x, const double *y, int64_t m) {
    double total = 0;
    for (int64_t i = 0; i < m; i++) total += x[i] * y[i];
    return total;
}

/* Conjugate gradients from 0; returns whether x became the solution. NaN gives up. */
static int approach(const job *o, work *w, double total) {
    const int64_t m = o->m;
    memset(w->z, 0, m * sizeof(double));
    memcpy(w->left, w->x, m * sizeof(double));
    memcpy(w->way, w->x, m * sizeof(double));
    double lacking = product(w->left, w->left, m);
    const double enough = ACCURATE * ACCURATE * lacking;
    for (int k = 0; k < PRODUCTS && !(lacking <= enough); k++) {
        multiply(o, w, w->way, w->image, total);
        const double stretched = product(w->way, w->image, m);
        if (!(stretched > NEARLY_SINGULAR * product(w->way, w->way, m))) return 0;
        const double step = lacking / stretched;
        for (int64_t i = 0; i < m; i++) {
            w->z[i] += step * w->way[i];
            w->left[i] -= step * w->image[i];
        }
        const double now = product(w->left, w->left, m), turn = now / lacking;
        for (int64_t i = 0; i < m; i++) w->way[i] = w->left[i] + turn * w->way[i];
        lacking = now;
    }
    if (!(lacking <= enough)) return 0;
    memcpy(w->x, w->z, m * sizeof(double));
    return 1;
}

/* The system, scaled to a unit diagonal. A constant moved from inputs to slots changes nothing:
 * that direction is fixed, and then chosen so that the total of b has no effect.
 */
static void solve(const job *o, work *w, int64_t e) {
    const int64_t m = o->m;
    double total = 0, moved = 0;
    for (int64_t i = 0; i < m; i++) {
        const double mass = sum(w->mass[i]);
        total += mass;
        w->root[i] = sqrt(mass);
        w->over[i] = mass == 0 ? 0 : 1 / w->root[i];
        w->x[i] = w->over[i] * sum(w->right[i]);
    }
    total = total == 0 ? 1 : total;
    if (!w->strips || !approach(o, w, total)) {
        if (w->strips) gather(o, w, e, 1);
        for (int64_t i = 0; i < m; i++)
            for (int64_t k = i; k < m; k++) {
                double *entry = &w->system[i * w->stride + k];
                *entry = w->root[i] * w->root[k] / total - *entry * w->over[i] * w->over[k];
                if (k == i) *entry += 1 + 1e-12;
            }
        eliminate(w->system, w->x, m, w->stride);
    }
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
    if (o->m >= MANY && o->m * o->n <= LARGEST) {
        const int64_t columns = (o->n + COLUMNS - 1) / COLUMNS * COLUMNS;
        ARRAY(strips, o->m * columns);
        ARRAY(shares, columns);
        ARRAY(z, o->m);
        ARRAY(left, o->m);
        ARRAY(way, o->m);
        ARRAY(image, o->m);
    }
    return used;
}

static void adjoint(const job *o, char *memory, int64_t e) {
    work w = {0};
    lay_out(o, &w, memory);
    /* Blocks read what is after the last slot. */
    if (o->m > FEW) memset(w.kept, 0, KEPT * w.stride * sizeof(double));
    if (w.strips) copy_plan(o, &w, e);
    gather(o, &w, e, !w.strips);
    solve(o, &w, e);
    apply(o, &w, e);
}

int EXPORTED(adjoint)(const job *o) {
    return slotmesh_spread(o, adjoint, lay_out(o, &(work){0}, NULL));
}
