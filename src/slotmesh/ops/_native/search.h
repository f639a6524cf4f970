/* Shortest paths over the columns of a cost matrix, for the exact solvers, in double precision.
 *
 * Distances are reduced costs: those of a row, c - v, minus what its tight column has of them. They
 * are sums and differences alone, so that all instruction levels find the same numbers.
 */
#ifndef SLOTMESH_SEARCH_H
#define SLOTMESH_SEARCH_H

#include <math.h>
#include <string.h>

#include "job.h"
#include "lanes.h"

/* Mirrored in exact.py. What may be NULL is marked so. */
typedef struct {
    job base; /* only its sizes and threads are used */
    const double *cost, *a, *b;    /* (batch, m, n), (batch, m), (batch, n); a and b or NULL */
    const float *narrow;           /* the costs in single precision, or NULL */
    const uint8_t *slots, *inputs; /* (batch, m), (batch, n), or NULL */
    int64_t maximize;
    int64_t *partner;              /* (batch, m) */
    double *plan, *u, *v;          /* (batch, m, n), (batch, m), (batch, n) */
    uint8_t *fine;                 /* (batch), which are solved */
    double *error;                 /* (batch), share of misplaced mass; or NULL, see transport.c */
} exact_job;

/* A problem without padding, with at most as many rows as columns. */
typedef struct {
    int64_t rows, columns, stride; /* what is after the columns has infinite cost */
    double *C;                     /* (rows, stride) */
    double *v;                     /* (stride), prices of the columns */
    double *open, *distance;       /* (stride), of columns not settled, else infinite; of settled ones */
    int64_t *from;                 /* (stride), the row before a column on its path */
    int64_t *rows_of, *columns_of; /* where they are in the problem of the caller */
    int64_t *settled;              /* (stride) */
    int64_t n_settled, ready;      /* of which this many have been left again */
    int transposed;
} search;

INLINE vec get(const double *x) { return *(const vec *)x; }
INLINE void put(double *x, vec y) { *(vec *)x = y; }
INLINE vec splat(double x) { return x - (vec){0}; }
INLINE vec choose(ivec mask, vec x, vec y) { return (vec)((mask & (ivec)x) | (~mask & (ivec)y)); }

static size_t lay_out_search(const exact_job *o, search *w, char *memory, size_t used) {
    const int64_t m = o->base.m, n = o->base.n, few = m < n ? m : n, many = m < n ? n : m;
    w->stride = (many + 7) / 8 * 8;
    ARRAY(C, few * w->stride);
    ARRAY(v, w->stride);
    ARRAY(distance, w->stride);
    ARRAY(open, w->stride);
    ARRAY(from, w->stride);
    ARRAY(settled, w->stride);
    ARRAY(rows_of, m);
    ARRAY(columns_of, n);
    return used;
}

/* The costs between some rows and columns; returns whether all of them are finite. */
static int read_costs(const exact_job *o, search *w, int64_t e, int64_t m, int64_t n) {
    const int64_t first = e * o->base.m * o->base.n;
    double sign = o->maximize ? -1 : 1, check = 0;
    w->transposed = m > n;
    w->rows = m < n ? m : n;
    w->columns = m < n ? n : m;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = first + w->rows_of[i] * o->base.n + w->columns_of[j];
            const double x = sign * (o->narrow ? o->narrow[at] : o->cost[at]);
            w->C[w->transposed ? j * w->stride + i : i * w->stride + j] = x;
            check += 0 * x; /* NaN if x is not finite */
        }
    for (int64_t i = 0; i < w->rows; i++)
        for (int64_t j = w->columns; j < w->stride; j++) w->C[i * w->stride + j] = INFINITY;
    return check == 0;
}

/* The lowest cost of every column as its price. */
static void lowest_prices(search *w) {
    for (int64_t j = 0; j < w->stride; j += LANES) {
        vec least = get(w->C + j);
        for (int64_t i = 1; i < w->rows; i++) {
            const vec x = get(w->C + i * w->stride + j);
            least = choose(x < least, x, least);
        }
        put(w->v + j, choose(least < INFINITY, least, splat(0)));
    }
}

/* Starts at a row. */
static void begin(search *w, int64_t row) {
    const double *C = w->C + row * w->stride;
    for (int64_t j = 0; j < w->stride; j += LANES) put(w->open + j, get(C + j) - get(w->v + j));
    for (int64_t j = 0; j < w->stride; j++) w->from[j] = row;
    w->n_settled = w->ready = 0;
}

/* Continues from a settled column to a row that has it. */
static void go_on(search *w, int64_t row, int64_t column) {
    const double *C = w->C + row * w->stride;
    const double less = C[column] - w->v[column] - w->distance[column];
    for (int64_t j = 0; j < w->stride; j += LANES) {
        const vec x = get(C + j) - get(w->v + j) - less, y = get(w->open + j);
        const ivec nearer = (x < y) & (y < INFINITY);
        ivec *from = (ivec *)(w->from + j);
        put(w->open + j, choose(nearer, x, y));
        *from = (nearer & row) | (~nearer & *from);
    }
}

/* Settles the nearest columns, all at one distance; returns whether there are any. */
static int settle(search *w) {
    vec least = get(w->open);
    for (int64_t j = LANES; j < w->stride; j += LANES) {
        const vec x = get(w->open + j);
        least = choose(x < least, x, least);
    }
    double low = least[0];
    for (int k = 1; k < LANES; k++) low = least[k] < low ? least[k] : low;
    if (!(low < INFINITY)) return 0;
    for (int64_t j = 0; j < w->columns; j++)
        if (w->open[j] == low) {
            w->open[j] = INFINITY;
            w->distance[j] = low;
            w->settled[w->n_settled++] = j;
        }
    return 1;
}

/* Prices at which all settled columns are as near as the last of them. */
static void reprice(search *w) {
    const double low = w->distance[w->settled[w->n_settled - 1]];
    for (int64_t k = 0; k < w->n_settled; k++) {
        const int64_t j = w->settled[k];
        w->v[j] += w->distance[j] - low;
    }
}

/* Every problem; returns 0 if all are solved, 1 if there is not enough memory, else 2. */
static int solve_all(const exact_job *o, element *one, size_t bytes) {
    if (slotmesh_spread(&o->base, one, bytes)) return 1;
    for (int64_t e = 0; e < o->base.batch; e++)
        if (!o->fine[e]) return 2;
    return 0;
}

#endif
