/* Exact transport by shortest augmenting paths; an assignment is the case of equal masses. */
#include <float.h>

#include "search.h"

/* Mass that a row gives to a column, in the list of that column. */
typedef struct {
    int64_t row, column, next; /* next in the list, or NONE */
    double mass;
} arc;

#define NONE -1

typedef struct {
    search s;
    double *a, *b;           /* (m), (n), masses; see fill_masses */
    double *supply, *demand; /* (rows), (columns): what is left */
    arc *arcs;               /* (rows * columns) */
    int64_t *first;          /* (columns), heads of the lists */
    int64_t n_arcs, unused;  /* arcs that have been used, and the list of those that are not now */
    int64_t *via;            /* (rows), the column before a row on its path */
    uint8_t *reached;        /* (rows) */
    int64_t *group, *queue;  /* (rows + columns): nodes are rows, then columns */
    int64_t *came, *head;    /* (rows + columns): the arc to a node, the first of its tree arcs */
    int64_t *next;           /* (rows * columns, 2), of the tree: next arc of a row, of a column */
    double negligible;       /* mass that is rounding */
} work;

static arc *find(work *w, int64_t row, int64_t column) {
    int64_t k = w->first[column];
    while (k != NONE && w->arcs[k].row != row) k = w->arcs[k].next;
    return k == NONE ? NULL : &w->arcs[k];
}

static void give(work *w, int64_t row, int64_t column, double mass) {
    arc *known = find(w, row, column);
    if (known) {
        known->mass += mass;
        return;
    }
    int64_t k = w->unused;
    if (k == NONE)
        k = w->n_arcs++;
    else
        w->unused = w->arcs[k].next;
    w->arcs[k] = (arc){row, column, w->first[column], mass};
    w->first[column] = k;
}

/* Returns whether something is left. */
static int take_back(work *w, int64_t row, int64_t column, double mass) {
    int64_t *link = &w->first[column];
    while (w->arcs[*link].row != row) link = &w->arcs[*link].next;
    const int64_t k = *link;
    w->arcs[k].mass -= mass;
    if (w->arcs[k].mass > w->negligible) return 1;
    *link = w->arcs[k].next;
    w->arcs[k].next = w->unused;
    w->unused = k;
    return 0;
}

/* Moves mass along the path to a column; returns whether the paths that were found still exist. */
static int push(work *w, int64_t row, int64_t end) {
    const search *s = &w->s;
    double most = w->supply[row] < w->demand[end] ? w->supply[row] : w->demand[end];
    for (int64_t j = end, i; (i = s->from[j]) != row; j = w->via[i]) {
        const double mass = find(w, i, w->via[i])->mass;
        most = mass < most ? mass : most;
    }
    int whole = 1;
    for (int64_t j = end, i;; j = w->via[i]) {
        i = s->from[j];
        give(w, i, j, most);
        if (i == row) break;
        whole &= take_back(w, i, w->via[i], most);
    }
    w->supply[row] -= most;
    w->demand[end] -= most;
    if (w->supply[row] <= w->negligible) w->supply[row] = 0;
    if (w->demand[end] <= w->negligible) w->demand[end] = 0;
    return whole;
}

/* Serves a row along shortest paths until a path breaks or nothing is left; 0 if there is none. */
static int extend(work *w, int64_t row) {
    search *s = &w->s;
    int whole = 1;
    begin(s, row);
    memset(w->reached, 0, s->rows);
    w->reached[row] = 1;
    while (whole && w->supply[row] > 0) {
        if (s->ready == s->n_settled && !settle(s)) return 0;
        for (int64_t k = s->ready; k < s->n_settled && whole && w->supply[row] > 0; k++)
            if (w->demand[s->settled[k]] > 0) whole = push(w, row, s->settled[k]);
        for (; s->ready < s->n_settled && whole && w->supply[row] > 0; s->ready++) {
            const int64_t j = s->settled[s->ready];
            for (int64_t k = w->first[j]; k != NONE; k = w->arcs[k].next) {
                const int64_t i = w->arcs[k].row;
                if (w->reached[i]) continue;
                w->reached[i] = 1;
                w->via[i] = j;
                go_on(s, i, j);
            }
        }
    }
    reprice(s);
    return 1;
}

static int64_t group_of(work *w, int64_t x) {
    while (w->group[x] != x) x = w->group[x] = w->group[w->group[x]];
    return x;
}

static int64_t other_end(const work *w, int64_t k, int64_t node) {
    return node < w->s.rows ? w->s.rows + w->arcs[k].column : w->arcs[k].row;
}

static void add_to_tree(work *w, int64_t k) {
    const int64_t row = w->arcs[k].row, column = w->s.rows + w->arcs[k].column;
    w->next[2 * k] = w->head[row];
    w->next[2 * k + 1] = w->head[column];
    w->head[row] = w->head[column] = k;
}

/* Walks through the tree from the row of an arc to its column, and leaves the way in came; returns
 * whether there is one.
 */
static int walk(work *w, int64_t closing) {
    const int64_t rows = w->s.rows, start = w->arcs[closing].row;
    const int64_t goal = rows + w->arcs[closing].column;
    int64_t tail = 0;
    for (int64_t x = 0; x < rows + w->s.columns; x++) w->came[x] = NONE;
    w->queue[tail++] = start;
    w->came[start] = closing;
    for (int64_t at = 0; at < tail && w->came[goal] == NONE; at++) {
        const int64_t x = w->queue[at];
        for (int64_t k = w->head[x]; k != NONE; k = w->next[2 * k + (x >= rows)]) {
            const int64_t y = other_end(w, k, x);
            if (w->arcs[k].mass == 0 || w->came[y] != NONE) continue;
            w->came[y] = k;
            w->queue[tail++] = y;
        }
    }
    return w->came[goal] != NONE;
}

/* Makes the plan a vertex: all arcs cost the same as others around a cycle, so that mass can move
 * around it until an arc has none.
 */
static void straighten(work *w) {
    const int64_t rows = w->s.rows, nodes = rows + w->s.columns;
    for (int64_t x = 0; x < nodes; x++) w->group[x] = x, w->head[x] = NONE;
    for (int64_t j = 0; j < w->s.columns; j++)
        for (int64_t k = w->first[j]; k != NONE; k = w->arcs[k].next) {
            const int64_t x = group_of(w, w->arcs[k].row), y = group_of(w, rows + j);
            w->group[x] = y;
            /* Two arcs of a cycle may have lost their mass at once, so that a group has parts. */
            if (x != y || !walk(w, k)) {
                add_to_tree(w, k);
                continue;
            }
            /* From the column back: arcs get more and less in turn, the closing one gets less. */
            double least = w->arcs[k].mass;
            int less = 0;
            for (int64_t at = rows + j; at != w->arcs[k].row; less = !less) {
                const arc *step = &w->arcs[w->came[at]];
                if (less && step->mass < least) least = step->mass;
                at = other_end(w, w->came[at], at);
            }
            less = 0;
            for (int64_t at = rows + j; at != w->arcs[k].row; less = !less) {
                arc *step = &w->arcs[w->came[at]];
                step->mass = less ? step->mass - least : step->mass + least;
                at = other_end(w, w->came[at], at);
            }
            w->arcs[k].mass -= least;
            if (w->arcs[k].mass > 0) add_to_tree(w, k);
        }
}

/* Returns whether all mass has arrived. */
static int solve(work *w, double total) {
    search *s = &w->s;
    /* Far more than any problem takes; rounding must not make it endless. */
    int64_t patience = 64 * (s->rows + s->columns);
    w->n_arcs = 0;
    w->unused = NONE;
    for (int64_t j = 0; j < s->columns; j++) w->first[j] = NONE;
    lowest_prices(s);
    for (int64_t i = 0; i < s->rows; i++)
        while (w->supply[i] > 0) {
            if (--patience < 0) return 0;
            if (extend(w, i)) continue;
            /* This is left over: the difference between the two totals. */
            if (w->supply[i] > 1e-9 * total) return 0;
            if (s->n_settled) reprice(s);
            break;
        }
    straighten(w);
    return 1;
}

static size_t lay_out(const exact_job *o, work *w, char *memory) {
    size_t used = lay_out_search(o, &w->s, memory, 0);
    const int64_t m = o->base.m, n = o->base.n;
    ARRAY(supply, m < n ? m : n);
    ARRAY(demand, w->s.stride);
    ARRAY(arcs, m * n);
    ARRAY(next, 2 * m * n);
    ARRAY(first, w->s.stride);
    ARRAY(via, m < n ? m : n);
    ARRAY(reached, m < n ? m : n);
    ARRAY(group, m + n);
    ARRAY(queue, m + n);
    ARRAY(came, m + n);
    ARRAY(head, m + n);
    ARRAY(a, m);
    ARRAY(b, n);
    return used;
}

/* The plan and the prices in the places of the caller. */
static void write_down(const exact_job *o, work *w, int64_t e) {
    const search *s = &w->s;
    const int64_t n = o->base.n;
    double *plan = o->plan + e * o->base.m * n, *u = o->u + e * o->base.m, *v = o->v + e * n;
    for (int64_t j = 0; j < s->columns; j++) {
        const int64_t to = s->transposed ? s->rows_of[j] : s->columns_of[j];
        (s->transposed ? u : v)[to] = s->v[j];
        for (int64_t k = w->first[j]; k != NONE; k = w->arcs[k].next) {
            const int64_t i = w->arcs[k].row, of = s->transposed ? s->columns_of[i] : s->rows_of[i];
            plan[s->transposed ? to * n + of : of * n + to] = w->arcs[k].mass;
        }
    }
    for (int64_t i = 0; i < s->rows; i++) {
        double least = INFINITY;
        for (int64_t j = 0; j < s->columns; j++) {
            const double x = s->C[i * s->stride + j] - s->v[j];
            least = x < least ? x : least;
        }
        const int64_t of = s->transposed ? s->columns_of[i] : s->rows_of[i];
        (s->transposed ? v : u)[of] = least;
    }
}

/* Masses for a caller that has not checked them: by default, 1 for every slot, and the same for every
 * input; inputs are rescaled to the total of slots. Returns whether all are usable: otherwise, the
 * caller raises the right error.
 */
static int fill_masses(const exact_job *o, work *w, int64_t e) {
    const int64_t m = o->base.m, n = o->base.n;
    double totals[2] = {0}, least = INFINITY;
    for (int64_t i = 0; i < m; i++) {
        totals[0] += w->a[i] = o->a ? o->a[e * m + i] : 1;
        least = w->a[i] < least ? w->a[i] : least;
    }
    for (int64_t j = 0; j < n; j++) {
        totals[1] += w->b[j] = o->b ? o->b[e * n + j] : (double)m / n;
        least = w->b[j] < least ? w->b[j] : least;
    }
    for (int64_t j = 0; j < n; j++) w->b[j] *= totals[0] / totals[1];
    /* NaN fails every comparison. */
    return least > 0 && totals[0] < INFINITY && fabs(totals[0] - totals[1]) <= 1e-6 * totals[0];
}

/* How much of the mass is in the wrong place, as a share of all mass. */
static double misplaced(const exact_job *o, const work *w, int64_t e) {
    const int64_t m = o->base.m, n = o->base.n;
    const double *plan = o->plan + e * m * n;
    double wrong = 0, total = 0;
    for (int64_t i = 0; i < m; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += plan[i * n + j];
        wrong += fabs(sum - w->a[i]);
        total += w->a[i];
    }
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < m; i++) sum += plan[i * n + j];
        wrong += fabs(sum - w->b[j]);
    }
    return wrong / total;
}

static void transport_one(const job *base, char *memory, int64_t e) {
    const exact_job *o = (const exact_job *)base;
    work w = {0};
    lay_out(o, &w, memory);
    search *s = &w.s;
    if (o->error && !(o->fine[e] = fill_masses(o, &w, e))) return;
    const double *a = o->error ? w.a : o->a + e * base->m, *b = o->error ? w.b : o->b + e * base->n;
    int64_t m = 0, n = 0;
    double total = 0;
    memset(o->plan + e * base->m * base->n, 0, base->m * base->n * sizeof(double));
    memset(o->u + e * base->m, 0, base->m * sizeof(double));
    memset(o->v + e * base->n, 0, base->n * sizeof(double));
    for (int64_t i = 0; i < base->m; i++) {
        if (a[i] > 0) s->rows_of[m++] = i;
        total += a[i];
    }
    for (int64_t j = 0; j < base->n; j++)
        if (b[j] > 0) s->columns_of[n++] = j;
    o->fine[e] = 1;
    if (m == 0 || n == 0) return;
    if (!(o->fine[e] = read_costs(o, s, e, m, n) && total < INFINITY)) return;
    w.negligible = 4 * DBL_EPSILON * total;
    double *rows = s->transposed ? w.demand : w.supply, *columns = s->transposed ? w.supply : w.demand;
    for (int64_t i = 0; i < m; i++) rows[i] = a[s->rows_of[i]];
    for (int64_t j = 0; j < n; j++) columns[j] = b[s->columns_of[j]];
    for (int64_t i = 0; i < s->rows; i++)
        if (w.supply[i] <= w.negligible) w.supply[i] = 0;
    for (int64_t j = 0; j < s->columns; j++)
        if (w.demand[j] <= w.negligible) w.demand[j] = 0;
    o->fine[e] = solve(&w, total);
    if (!o->fine[e]) return;
    write_down(o, &w, e);
    if (o->error) o->error[e] = misplaced(o, &w, e);
}

int EXPORTED(transport)(const exact_job *o) {
    return solve_all(o, transport_one, lay_out(o, &(work){0}, NULL));
}
