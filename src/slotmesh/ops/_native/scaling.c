/* Sinkhorn by scalings, and the steps of MESH, in single precision: one batch element at a time,
 * which stays in the cache. Formulas and names are those of __init__.py; padded slots are left out.
 *
 * All sums are in an order that depends on the size of a matrix alone. NaN stays NaN.
 */
#include <math.h>
#include <string.h>

#include "convert.h"
#include "job.h"

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define TILE 4   /* vectors of columns that are worked on at a time */
#define LINE 16  /* floats in a cache line */

/* The most that the potential of a slot may change within one Sinkhorn, as a factor. */
#define LIMIT 1e8f
/* Entries of E are at least exp(LEAST) = 1e-30: arithmetic that underflows is very slow. */
#define LEAST -69.0f
#define SHORTEST 1e-12f /* as in _naive.py */
#define EPSILON 1.1920929e-7f
#define TINY 1.17549435e-38f

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float quad __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

/* For all columns j, body(arguments, j, vectors): whole tiles, then what is left. */
#define EACH_TILE(width, body, ...)                                                        \
    do {                                                                                   \
        int64_t j = 0;                                                                     \
        for (; j + TILE * LANES <= (width); j += TILE * LANES) body(__VA_ARGS__, j, TILE); \
        for (; j + 2 * LANES <= (width); j += 2 * LANES) body(__VA_ARGS__, j, 2);          \
        for (; j < (width); j += LANES) body(__VA_ARGS__, j, 1);                           \
    } while (0)

/* Per thread. Matrices and vectors of inputs are padded to whole vectors, without mass. */
typedef struct {
    int64_t m, width, stride, n_iters;
    int64_t step;              /* from one iteration to the next: 0 if only the last is kept */
    float *C, *E, *G;          /* (m, stride) */
    float *inverse, *q, *beta; /* (n_iters, stride), the first is 1 / s */
    float *b, *h, *c, *grad_v;   /* (stride) */
    float *p, *alpha;          /* (n_iters + 1, m), (n_iters, m) */
    float *a, *u, *g, *mean;   /* (m) */
    vec *sums;                 /* (m) */
    int64_t *rows;             /* (m), which slots are real */
    float squared, rounding;   /* norms of the derivative, and of what it is off by; squared */
} work;

INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec get(const float *x) { return *(const vec *)x; }
INLINE void put(float *x, vec y) { *(vec *)x = y; }
INLINE vec choose(ivec mask, vec x, vec y) { return (vec)((mask & (ivec)x) | (~mask & (ivec)y)); }

INLINE vec absolute(vec x) { return (vec)((ivec)x & 0x7fffffff); }

INLINE float sum(vec x) {
    const quad *part = (const quad *)&x;
    quad total = part[0];
    for (int k = 1; k < LANES / 4; k++) total += part[k];
    return (total[0] + total[2]) + (total[1] + total[3]);
}

/* exp(x) for x between LEAST and 0. */
INLINE vec exponential(vec x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded to integers */
    vec t = x * 1.44269504088896341f + shift, k = t - shift;
    vec r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    return y * (vec)(((ivec)t << 23) + (127 << 23));
}

/* log(x) for normal numbers above 0. */
INLINE vec logarithm(vec x) {
    ivec e = ((ivec)x - 0x3f3504f3) >> 23; /* the root of a half */
    vec f = (vec)((ivec)x - (e << 23)) - 1.0f, k = CONVERTED(e, vec), z = f * f;
    vec y = f * 7.0376836292e-2f - 1.1514610310e-1f;
    y = y * f + 1.1676998740e-1f;
    y = y * f - 1.2420140846e-1f;
    y = y * f + 1.4249322787e-1f;
    y = y * f - 1.6668057665e-1f;
    y = y * f + 2.0000714765e-1f;
    y = y * f - 2.4999993993e-1f;
    y = y * f + 3.3333331174e-1f;
    y = y * f * z - k * 2.12194440e-4f - 0.5f * z;
    return k * 0.693359375f + (f + y);
}

/* E^T x for some columns. */
INLINE void over_slots(const work *w, const float *x, int64_t j, int vectors, vec *out) {
    for (int k = 0; k < vectors; k++) out[k] = (vec){0};
    for (int64_t i = 0; i < w->m; i++)
        for (int k = 0; k < vectors; k++)
            out[k] += get(w->E + i * w->stride + j + k * LANES) * x[i];
}

/* What some columns add to E x. */
INLINE void over_inputs(const work *w, const vec *x, int64_t j, int vectors) {
    for (int64_t i = 0; i < w->m; i++) {
        vec total = w->sums[i];
        for (int k = 0; k < vectors; k++)
            total += get(w->E + i * w->stride + j + k * LANES) * x[k];
        w->sums[i] = total;
    }
}

static void clear_sums(work *w) { memset(w->sums, 0, w->m * sizeof(vec)); }

/* E and h of the costs and of potentials u. */
INLINE void absorb_tile(work *w, float scale, int64_t j, int vectors) {
    for (int k = 0; k < vectors; k++, j += LANES) {
        vec h = splat(-INFINITY);
        for (int64_t i = 0; i < w->m; i++) {
            vec x = get(w->C + i * w->stride + j) * scale + w->u[i];
            put(w->E + i * w->stride + j, x);
            h = choose(x > h, x, h);
        }
        put(w->h + j, h);
        for (int64_t i = 0; i < w->m; i++) {
            float *entry = w->E + i * w->stride + j;
            vec x = get(entry) - h;
            put(entry, exponential(choose(x < LEAST, splat(LEAST), x)));
        }
    }
}

INLINE void scale_tile(work *w, int64_t t, int64_t j, int vectors) {
    vec s[TILE];
    over_slots(w, w->p + t * w->m, j, vectors, s);
    for (int k = 0; k < vectors; k++) {
        int64_t at = j + k * LANES;
        vec inverse = 1.0f / s[k], q = get(w->b + at) * inverse;
        put(w->inverse + t * w->step + at, inverse);
        put(w->q + t * w->step + at, q);
        s[k] = q;
    }
    over_inputs(w, s, j, vectors);
}

/* All iterations; returns whether they can be trusted. */
static int iterate(work *w) {
    for (int64_t i = 0; i < w->m; i++) w->p[i] = 1;
    for (int64_t t = 0; t < w->n_iters; t++) {
        clear_sums(w);
        EACH_TILE(w->width, scale_tile, w, t);
        int fine = 1;
        for (int64_t i = 0; i < w->m; i++) {
            float p = w->a[i] / sum(w->sums[i]);
            w->p[(t + 1) * w->m + i] = p;
            fine &= p >= 1 / LIMIT && p <= LIMIT; /* a NaN is in no range */
        }
        if (!fine) return 0;
    }
    return 1;
}

static int sinkhorn(work *w, float tau) {
    EACH_TILE(w->width, absorb_tile, w, -1 / tau);
    return iterate(w);
}

INLINE void reverse_tile(work *w, int64_t t, int64_t j, int vectors) {
    vec x[TILE];
    over_slots(w, w->alpha + t * w->m, j, vectors, x);
    for (int k = 0; k < vectors; k++) {
        int64_t at = j + k * LANES;
        x[k] *= get(w->q + t * w->step + at);
        if (t == w->n_iters - 1) x[k] -= get(w->c + at);
        x[k] *= get(w->inverse + t * w->step + at);
        put(w->beta + t * w->step + at, x[k]);
    }
    over_inputs(w, x, j, vectors);
}

/* Adds to G what goes through the iterations, and makes its column sums right.
 *
 * A constant added to a column of K is absorbed by its v: the sum is minus the derivative with
 * respect to v. Where nearly all of an input goes to one slot, terms cancel in that entry up to
 * rounding, which may exceed all other entries.
 */
INLINE void finish_tile(work *w, vec *squared, int64_t j, int vectors) {
    const int64_t m = w->m, last = w->n_iters - 1;
    vec excess[TILE];
    for (int k = 0; k < vectors; k++) excess[k] = get(w->grad_v + j + k * LANES);
    for (int64_t i = 0; i < m; i++) {
        vec total[TILE];
        for (int k = 0; k < vectors; k++) total[k] = (vec){0};
        for (int64_t t = 0; t <= last; t++) {
            const float *beta = w->beta + t * w->step + j, *q = w->q + t * w->step + j;
            float before = w->p[t * m + i], alpha = w->alpha[t * m + i];
            for (int k = 0; k < vectors; k++) {
                total[k] += get(beta + k * LANES) * before;
                total[k] -= get(q + k * LANES) * alpha;
            }
        }
        for (int k = 0; k < vectors; k++) {
            int64_t at = i * w->stride + j + k * LANES;
            vec x = get(w->G + at) + get(w->E + at) * total[k];
            put(w->G + at, x);
            excess[k] += x;
        }
    }
    for (int k = 0; k < vectors; k++)
        excess[k] *= get(w->inverse + last * w->step + j + k * LANES);
    for (int64_t i = 0; i < m; i++)
        for (int k = 0; k < vectors; k++) {
            int64_t at = i * w->stride + j + k * LANES;
            vec x = get(w->G + at) - get(w->E + at) * (excess[k] * w->p[last * m + i]);
            put(w->G + at, x);
            *squared += x * x;
        }
}

/* Turns G, whose row and column sums are in g and c, into the derivative of K. */
static void reverse(work *w) {
    const int64_t m = w->m, last = w->n_iters - 1;
    for (int64_t t = last; t >= 0; t--) {
        const float *p = w->p + (t + 1) * m;
        for (int64_t i = 0; i < m; i++) {
            float g = t == last ? w->g[i] : p[i] * sum(w->sums[i]);
            w->alpha[t * m + i] = g * p[i] / w->a[i];
        }
        clear_sums(w);
        EACH_TILE(w->width, reverse_tile, w, t);
    }
    vec squared = {0};
    EACH_TILE(w->width, finish_tile, w, &squared);
    w->squared = sum(squared);
}

INLINE void most_tile(vec *most, const float *E, const float *q, int64_t j, int vectors) {
    vec x = get(E + j) * get(q + j);
    for (int k = 1; k < vectors; k++) {
        vec y = get(E + j + k * LANES) * get(q + j + k * LANES);
        x = choose(y > x, y, x);
    }
    *most = choose(x > *most, x, *most);
}

/* G of the sum of P log P. Logarithms are relative to the largest of their row: of a plan that is
 * nearly uniform or nearly one-hot they are small, and so exact, where there is mass. Also the error
 * bound of the derivative, as in _naive.py.
 */
static void derive(work *w, float tau) {
    const float *q = w->q + (w->n_iters - 1) * w->step, *p = w->p + w->n_iters * w->m;
    const float scale = -1 / tau;
    vec rounding = {0};
    memset(w->c, 0, w->width * sizeof(float));
    for (int64_t i = 0; i < w->m; i++) {
        const float *E = w->E + i * w->stride, *C = w->C + i * w->stride;
        const float before = 1 + fabsf(w->u[i]), inverse = p[i] / w->a[i];
        vec most = {0}, total = {0};
        EACH_TILE(w->width, most_tile, &most, E, q);
        float largest = TINY;
        for (int k = 0; k < LANES; k++) largest = most[k] > largest ? most[k] : largest;
        for (int64_t j = 0; j < w->width; j += LANES) {
            vec share = get(E + j) * get(q + j), part = share / largest;
            vec log = logarithm(choose(part < TINY, splat(TINY), part)), x = share * p[i] * log;
            vec size = absolute(get(C + j) * scale) + before - log;
            size *= share * p[i] * (1 - share * inverse);
            rounding += size * size;
            put(w->G + i * w->stride + j, x);
            put(w->c + j, get(w->c + j) + x);
            total += x;
        }
        w->g[i] = sum(total);
    }
    w->rounding = EPSILON * EPSILON * sum(rounding);
}

/* One row of a matrix or a vector of inputs, with zeros after it. */
static void gather(const work *w, float *to, const float *from, int64_t n) {
    memcpy(to, from, n * sizeof(float));
    memset(to + n, 0, (w->width - n) * sizeof(float));
}

static float tau_of(const job *o, int64_t e) { return o->taus ? o->taus[e] : o->tau; }

static void load(const job *o, work *w, int64_t e) {
    w->m = 0;
    for (int64_t i = 0; i < o->m; i++) {
        if (o->slots && !o->slots[e * o->m + i]) continue;
        w->rows[w->m] = i;
        w->a[w->m] = o->a[e * o->m + i];
        w->u[w->m] = o->start[e * o->m + i];
        gather(w, w->C + w->m * w->stride, o->cost + (e * o->m + i) * o->n, o->n);
        w->m++;
    }
    gather(w, w->b, o->b + e * o->n, o->n);
}

static void set_row(float *x, int64_t n, float value) {
    for (int64_t j = 0; j < n; j++) x[j] = value;
}

static int descend(const job *o, work *w, int64_t e) {
    const float length = o->lengths ? o->lengths[e] : o->length;
    for (int64_t step = 0; step < o->n_steps; step++) {
        if (!sinkhorn(w, tau_of(o, e))) return 0;
        derive(w, tau_of(o, e));
        reverse(w);
        if (!o->fresh)
            for (int64_t i = 0; i < w->m; i++) w->u[i] += logf(w->p[w->n_iters * w->m + i]);
        if (w->squared < w->rounding) continue;
        float norm = sqrtf(w->squared);
        const float scale = length / (norm < SHORTEST ? SHORTEST : norm);
        for (int64_t i = 0; i < w->m; i++)
            for (int64_t j = i * w->stride; j < i * w->stride + w->width; j += LANES)
                put(w->C + j, get(w->C + j) - get(w->G + j) * scale);
    }
    return 1;
}

static void solve(const job *o, work *w, int64_t e) {
    if (!o->easy[e]) return;
    load(o, w, e);
    set_row(w->grad_v, w->width, 0);
    o->easy[e] = descend(o, w, e) && sinkhorn(w, tau_of(o, e));
    if (!o->easy[e]) return;
    if (o->changed)
        memcpy(o->changed + e * o->m * o->n, o->cost + e * o->m * o->n, o->m * o->n * sizeof(float));
    memset(o->plan + e * o->m * o->n, 0, o->m * o->n * sizeof(float));
    set_row(o->u + e * o->m, o->m, -INFINITY);
    const float *q = w->q + (w->n_iters - 1) * w->step, *p = w->p + w->n_iters * w->m;
    for (int64_t i = 0; i < w->m; i++) {
        const int64_t row = e * o->m + w->rows[i];
        float *E = w->E + i * w->stride;
        for (int64_t j = 0; j < w->width; j += LANES) put(E + j, get(E + j) * get(q + j) * p[i]);
        memcpy(o->plan + row * o->n, E, o->n * sizeof(float));
        o->u[row] = w->u[i] + logf(p[i]);
        if (!o->changed) continue;
        memcpy(o->changed + row * o->n, w->C + i * w->stride, o->n * sizeof(float));
        o->start[row] = w->u[i];
    }
    for (int64_t j = 0; j < w->width; j += LANES) {
        vec x = get(q + j);
        put(w->h + j, choose(x > 0, logarithm(x), splat(-INFINITY)) - get(w->h + j));
    }
    memcpy(o->v + e * o->n, w->h, o->n * sizeof(float));
}

/* G of a gradient of the plan, minus the mean of its rows.
 *
 * Slot sums are constant, so the mean, which is the gradient of the slots' masses, does not affect
 * the gradient of K, only its rounding.
 */
static void centre(const job *o, work *w, int64_t e) {
    const float *q = w->q + (w->n_iters - 1) * w->step, *p = w->p + w->n_iters * w->m;
    memset(w->c, 0, w->width * sizeof(float));
    for (int64_t i = 0; i < w->m; i++) {
        float *G = w->G + i * w->stride;
        const float *E = w->E + i * w->stride;
        vec mean = {0}, total = {0};
        if (o->grad_plan)
            gather(w, G, o->grad_plan + (e * o->m + w->rows[i]) * o->n, o->n);
        else
            set_row(G, w->width, 0);
        for (int64_t j = 0; j < w->width; j += LANES)
            mean += get(E + j) * get(q + j) * p[i] * get(G + j);
        w->mean[i] = sum(mean) / w->a[i];
        for (int64_t j = 0; j < w->width; j += LANES) {
            vec x = get(E + j) * get(q + j) * p[i] * (get(G + j) - w->mean[i]);
            put(G + j, x);
            put(w->c + j, get(w->c + j) + x);
            total += x;
        }
        w->g[i] = sum(total) + (o->grad_u ? o->grad_u[e * o->m + w->rows[i]] : 0);
    }
    if (o->grad_v)
        gather(w, w->grad_v, o->grad_v + e * o->n, o->n);
    else
        set_row(w->grad_v, w->width, 0);
    for (int64_t j = 0; j < w->width; j += LANES) put(w->c + j, get(w->c + j) + get(w->grad_v + j));
}

static void pull_back(const job *o, work *w, int64_t e) {
    if (o->easy && !o->easy[e]) return;
    const float tau = tau_of(o, e);
    load(o, w, e);
    sinkhorn(w, tau);
    centre(o, w, e);
    reverse(w);
    memset(o->grad_cost + e * o->m * o->n, 0, o->m * o->n * sizeof(float));
    if (o->grad_a) set_row(o->grad_a + e * o->m, o->m, 0);
    if (o->grad_start) set_row(o->grad_start + e * o->m, o->m, 0);
    vec grad_tau = {0};
    for (int64_t i = 0; i < w->m; i++) {
        const int64_t row = e * o->m + w->rows[i];
        for (int64_t j = i * w->stride; j < i * w->stride + w->width; j += LANES) {
            vec x = get(w->G + j) * (-1 / tau);
            put(w->G + j, x);
            grad_tau -= x * get(w->C + j);
        }
        memcpy(o->grad_cost + row * o->n, w->G + i * w->stride, o->n * sizeof(float));
        if (o->grad_a) {
            float total = w->mean[i];
            for (int64_t t = 0; t < w->n_iters; t++)
                total += w->alpha[t * w->m + i] / w->p[(t + 1) * w->m + i];
            o->grad_a[row] = total;
        }
        if (o->grad_start) o->grad_start[row] = sum(w->sums[i]);
    }
    if (o->grad_tau) o->grad_tau[e] = sum(grad_tau) / tau;
    if (!o->grad_b) return;
    for (int64_t j = 0; j < o->n; j++) {
        float total = 0;
        for (int64_t t = 0; t < w->n_iters; t++)
            if (w->b[j] > 0) total -= w->beta[t * w->step + j] / w->q[t * w->step + j];
        o->grad_b[e * o->n + j] = total;
    }
}

/* Cuts memory into arrays, or counts the bytes if it is NULL. */
static size_t lay_out(const job *o, work *w, int64_t kept, char *memory) {
    size_t used = 0;
    const int64_t m = o->m, T = o->n_iters;
    w->n_iters = T;
    w->width = (o->n + LANES - 1) / LANES * LANES;
    /* An odd number of lines, so that rows do not compete for the same place in the cache. */
    w->stride = ((w->width + LINE - 1) / LINE | 1) * LINE;
    w->step = kept == 1 ? 0 : w->stride;
    ARRAY(C, m * w->stride);
    ARRAY(E, m * w->stride);
    ARRAY(G, m * w->stride);
    ARRAY(inverse, kept * w->stride);
    ARRAY(q, kept * w->stride);
    ARRAY(beta, kept * w->stride);
    ARRAY(b, w->stride);
    ARRAY(h, w->stride);
    ARRAY(c, w->stride);
    ARRAY(grad_v, w->stride);
    ARRAY(p, (T + 1) * m);
    ARRAY(alpha, T * m);
    ARRAY(a, m);
    ARRAY(u, m);
    ARRAY(g, m);
    ARRAY(mean, m);
    ARRAY(sums, m);
    ARRAY(rows, m);
    return used;
}

/* Which iterations are kept: all of them if reverse mode follows. */
static int64_t kept_forward(const job *o) { return o->n_steps > 0 ? o->n_iters : 1; }

static void solve_one(const job *o, char *memory, int64_t e) {
    work w = {0};
    lay_out(o, &w, kept_forward(o), memory);
    solve(o, &w, e);
}

static void pull_back_one(const job *o, char *memory, int64_t e) {
    work w = {0};
    lay_out(o, &w, o->n_iters, memory);
    pull_back(o, &w, e);
}

int EXPORTED(solve)(const job *o) {
    return slotmesh_spread(o, solve_one, lay_out(o, &(work){0}, kept_forward(o), NULL));
}

int EXPORTED(pull_back)(const job *o) {
    return slotmesh_spread(o, pull_back_one, lay_out(o, &(work){0}, o->n_iters, NULL));
}
