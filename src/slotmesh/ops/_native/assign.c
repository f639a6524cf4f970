/* One-to-one assignment: Jonker and Volgenant's algorithm for rectangular costs. */
#include "search.h"

typedef struct {
    search s;
    int64_t *row_at, *column_at; /* (stride), (rows): partners, -1 for none */
    int64_t *idle, *waiting;     /* (rows), without a partner */
} work;

/* The two best columns of a row; of several best ones, a free one if there is any. */
INLINE void two_best(const work *w, int64_t i, int64_t *at, double *best, double *second) {
    const search *s = &w->s;
    const double *C = s->C + i * s->stride;
    vec low = splat(INFINITY), next = splat(INFINITY);
    for (int64_t j = 0; j < s->stride; j += LANES) {
        const vec x = get(C + j) - get(s->v + j), worse = choose(x < low, low, x);
        low = choose(x < low, x, low);
        next = choose(worse < next, worse, next);
    }
    *best = *second = INFINITY;
    for (int k = 0; k < LANES; k++) {
        const double worse = low[k] < *best ? *best : low[k];
        *best = low[k] < *best ? low[k] : *best;
        *second = worse < *second ? worse : *second;
        *second = next[k] < *second ? next[k] : *second;
    }
    *at = 0;
    while (C[*at] - s->v[*at] != *best) ++*at;
    for (int64_t j = *at + 1; *second == *best && w->row_at[*at] >= 0 && j < s->columns; j++)
        if (w->row_at[j] < 0 && C[j] - s->v[j] == *best) *at = j;
}

/* Rows take their best column, and bid the difference to the second best: most keep one. */
static int64_t bid(work *w, int64_t n_idle) {
    const search *s = &w->s;
    /* Where rows compete for few columns, bids can be very small. */
    int64_t patience = 4 * s->rows, kept = 0;
    for (int64_t k = 0; k < n_idle; k++) {
        int64_t i = w->idle[k];
        for (;;) {
            int64_t j;
            double best, second;
            two_best(w, i, &j, &best, &second);
            const double price = second < INFINITY ? s->v[j] - (second - best) : s->v[j];
            const int lowered = price < s->v[j];
            const int64_t before = w->row_at[j];
            if (!lowered && before >= 0) {
                w->waiting[kept++] = i;
                break;
            }
            s->v[j] = price;
            w->row_at[j] = i;
            w->column_at[i] = j;
            if (before < 0) break;
            w->column_at[before] = -1;
            i = before;
            if (--patience < 0) {
                w->waiting[kept++] = i;
                break;
            }
        }
    }
    memcpy(w->idle, w->waiting, kept * sizeof(int64_t));
    return kept;
}

/* Gives a row a column, along the shortest path to a free one; returns whether there is one. */
static int extend(work *w, int64_t row) {
    search *s = &w->s;
    int64_t end = -1;
    begin(s, row);
    while (end < 0) {
        if (s->ready == s->n_settled && !settle(s)) return 0;
        for (int64_t k = s->ready; k < s->n_settled && end < 0; k++)
            if (w->row_at[s->settled[k]] < 0) end = s->settled[k];
        for (; s->ready < s->n_settled && end < 0; s->ready++)
            go_on(s, w->row_at[s->settled[s->ready]], s->settled[s->ready]);
    }
    reprice(s);
    for (int64_t i = -1; i != row;) {
        i = s->from[end];
        const int64_t before = w->column_at[i];
        w->row_at[end] = i;
        w->column_at[i] = end;
        end = before;
    }
    return 1;
}

static int solve(work *w) {
    search *s = &w->s;
    if (s->rows == s->columns)
        lowest_prices(s);
    else /* a column that stays free has price 0 */
        memset(s->v, 0, s->stride * sizeof(double));
    for (int64_t j = 0; j < s->stride; j++) w->row_at[j] = -1;
    for (int64_t i = 0; i < s->rows; i++) w->column_at[i] = -1, w->idle[i] = i;
    int64_t n_idle = bid(w, s->rows);
    if (n_idle) n_idle = bid(w, n_idle);
    for (int64_t k = 0; k < n_idle; k++)
        if (!extend(w, w->idle[k])) return 0;
    return 1;
}

static size_t lay_out(const exact_job *o, work *w, char *memory) {
    size_t used = lay_out_search(o, &w->s, memory, 0);
    const int64_t few = o->base.m < o->base.n ? o->base.m : o->base.n;
    ARRAY(row_at, w->s.stride);
    ARRAY(column_at, few);
    ARRAY(idle, few);
    ARRAY(waiting, few);
    return used;
}

static void assign_one(const job *base, char *memory, int64_t e) {
    const exact_job *o = (const exact_job *)base;
    work w = {0};
    lay_out(o, &w, memory);
    search *s = &w.s;
    int64_t m = 0, n = 0, *partner = o->partner + e * base->m;
    for (int64_t i = 0; i < base->m; i++) {
        if (!o->slots || o->slots[e * base->m + i]) s->rows_of[m++] = i;
        partner[i] = -1;
    }
    for (int64_t j = 0; j < base->n; j++)
        if (!o->inputs || o->inputs[e * base->n + j]) s->columns_of[n++] = j;
    o->fine[e] = 1;
    if (m == 0 || n == 0) return;
    o->fine[e] = read_costs(o, s, e, m, n) && solve(&w);
    if (!o->fine[e]) return;
    for (int64_t k = 0; k < s->rows; k++)
        if (s->transposed)
            partner[s->rows_of[w.column_at[k]]] = s->columns_of[k];
        else
            partner[s->rows_of[k]] = s->columns_of[w.column_at[k]];
}

int EXPORTED(assign)(const exact_job *o) {
    return solve_all(o, assign_one, lay_out(o, &(work){0}, NULL));
}
