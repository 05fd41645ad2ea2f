/* SPDX-License-Identifier: Apache-2.0 */
/* A small pthread pool that fills an ng_executor: for the tool, benches and callers without
 * one. */
#include <stdlib.h>

#include <stdbool.h>

#include "ng/ctx.h"

#ifdef NG_THREADS
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

struct ng_pool {
    pthread_mutex_t turn; /* one parallel_for at a time, whichever context calls */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t *thread;
    size_t n_threads; /* helpers; the caller of parallel_for is one more worker */
    bool stop;

    /* The run under way; all but `next` change under the lock only. */
    uint64_t run;
    size_t busy;
    size_t n;
    void (*body)(void *arg, size_t i, size_t worker);
    void *arg;
    atomic_size_t next;
};

struct start {
    ng_pool *pool;
    size_t worker;
};

static void take_items(ng_pool *p, size_t worker)
{
    for (size_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n;)
        p->body(p->arg, i, worker);
}

static void *helper(void *arg)
{
    const struct start s = *(struct start *)arg;
    ng_pool *p = s.pool;
    uint64_t seen = 0;
    free(arg);
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->run == seen)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->stop)
            break;
        seen = p->run;
        pthread_mutex_unlock(&p->lock);
        take_items(p, s.worker);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0)
            pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void parallel_for(void *user, size_t n, void (*body)(void *arg, size_t i, size_t worker),
                         void *arg)
{
    ng_pool *p = user;
    pthread_mutex_lock(&p->turn);
    pthread_mutex_lock(&p->lock);
    p->n = n;
    p->body = body;
    p->arg = arg;
    atomic_store(&p->next, 0);
    p->busy = p->n_threads;
    p->run++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);

    take_items(p, 0);

    pthread_mutex_lock(&p->lock);
    while (p->busy)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->turn);
}

ng_status ng_pool_create(size_t threads, ng_pool **pool, ng_executor *executor)
{
    if (!pool || !executor || threads > 4096)
        return NG_ERR_ARGUMENT;
    if (!threads) {
        const long n = sysconf(_SC_NPROCESSORS_ONLN);
        threads = n > 0 ? (size_t)n : 1;
    }
    ng_pool *p = calloc(1, sizeof *p);
    if (!p)
        return NG_ERR_MEMORY;
    p->thread = calloc(threads, sizeof *p->thread);
    if (!p->thread) {
        free(p);
        return NG_ERR_MEMORY;
    }
    pthread_mutex_init(&p->turn, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    while (p->n_threads + 1 < threads) {
        struct start *s = malloc(sizeof *s);
        if (s)
            *s = (struct start){ p, p->n_threads + 1 };
        if (!s || pthread_create(&p->thread[p->n_threads], NULL, helper, s)) {
            free(s);
            ng_pool_destroy(p);
            return NG_ERR_MEMORY;
        }
        p->n_threads++;
    }
    *pool = p;
    *executor = (ng_executor){ parallel_for, p, threads };
    return NG_OK;
}

void ng_pool_destroy(ng_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->n_threads; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->turn);
    free(p->thread);
    free(p);
}

#else

ng_status ng_pool_create(size_t threads, ng_pool **pool, ng_executor *executor)
{
    (void)threads;
    return pool && executor ? NG_ERR_UNSUPPORTED : NG_ERR_ARGUMENT;
}

void ng_pool_destroy(ng_pool *pool)
{
    (void)pool;
}

#endif
