/* Threads that share the elements of a batch: torch's own, or new ones. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "job.h"

/* What threads share. */
typedef struct {
    const job *job;
    element *one;
    char *memory;
    size_t bytes; /* of one thread */
    atomic_llong members, next;
} crew;

static void take_part(void *of) {
    crew *all = of;
    const job *o = all->job;
    const int64_t me = atomic_fetch_add(&all->members, 1);
    if (me >= o->threads) return;
    char *memory = all->memory + me * all->bytes;
    for (int64_t e; (e = atomic_fetch_add(&all->next, 1)) < o->batch;) all->one(o, memory, e);
}

static void *thread(void *of) {
    take_part(of);
    return NULL;
}

int slotmesh_spread(const job *o, element *one, size_t bytes) {
    crew all = {.job = o, .one = one, .bytes = bytes};
    pthread_t *others = calloc(o->threads, sizeof(pthread_t));
    all.memory = aligned_alloc(64, all.bytes * o->threads);
    const int failed = !others || !all.memory;
    if (!failed && o->parallel && o->threads > 1) {
        /* All of them, as torch does: asking for fewer would end the others. */
        o->parallel(take_part, &all, 0, 0);
    } else if (!failed) {
        int64_t started = 1;
        while (started < o->threads && !pthread_create(&others[started], NULL, thread, &all))
            started++;
        take_part(&all);
        while (started > 1) pthread_join(others[--started], NULL);
    }
    free(others);
    free(all.memory);
    return failed;
}
