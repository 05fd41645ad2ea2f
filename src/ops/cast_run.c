/* SPDX-License-Identifier: Apache-2.0 */
#include "cast_run.h"

#include <stdatomic.h>
#include <string.h>

enum {
    PIECE = 16384,      /* elements of a task: enough to hide the executor */
    DRAW = PIECE,       /* random words that are drawn at a time: a place in a stream is
                           found once for many */
    BATCH = 2048,       /* words of a counter, which has no places to find: they stay in the
                           first cache */
    STRIP = 8192,       /* words of all strands at a time */
    STRIP_APART = 16,   /* between two strands': else all would share a few sets */
    STRIP_LEAST = 64,   /* columns: a call of the kernel for fewer costs more than a place */
    STRIP_CUT = 256,    /* rows are cut at multiples: whole steps of all states */
    STRIP_TASK = 65536, /* elements of a task that follows strands */
    STAGE = 512,        /* elements that are gathered at a time; a kernel's largest block */
    COLUMNS = 1024,     /* of a task across rows */
    WRAP_TILE = 512,    /* section 3.3: K of a full tile under trn_wrap */
    WRAP_RUN = 8,       /* rows of a group; elements of a run */
    STREAM_FROM = 48 << 20, /* bytes in and out that no cache is expected to keep */
};

void ng_cast_pick(ng_ctx *ctx, struct cast_plan *p)
{
    const int64_t bits = p->job.from->store_bits + p->job.to->store_bits;
    p->job.stream = ng_count(p->dst) * bits / 8 >= STREAM_FROM;
    p->job.second = ng_ctx_asks_second(ctx);
    p->kernel = ng_pick_cast(&p->job, ng_ctx_isas(ctx));
    ng_tell_cast(ctx,
                 p->job.quantize ? "quantize"
                 : p->scaled     ? "dequantize"
                                 : "convert",
                 &p->job, p->kernel, NULL);
    ng_ctx_note_kernel(ctx, p->kernel ? p->kernel->name : "ref", (ng_tiles){ 0 });
}

/* ---- The tensor as nested loops, dimensions in logical order. ---- */

struct dims {
    uint32_t rank;
    int64_t n[NG_MAX_RANK], src[NG_MAX_RANK], dst[NG_MAX_RANK], scale[NG_MAX_RANK];
    int64_t word[NG_MAX_RANK]; /* strides of element numbers */
    uint32_t of[NG_MAX_RANK];  /* the tensor's dimension; of a merged one, its last */
};

static void push(struct dims *x, const struct cast_plan *p, uint32_t d, int64_t word,
                 const int64_t *scale)
{
    const uint32_t i = x->rank++;
    x->n[i] = p->dst->dim[d];
    x->src[i] = p->src->stride[d];
    x->dst[i] = p->dst->stride[d];
    x->scale[i] = scale[d];
    x->word[i] = word;
    x->of[i] = d;
}

/* Do dimensions i and i + 1 lie in both tensors like one? */
static bool merges(const struct dims *x, uint32_t i)
{
    const int64_t n = x->n[i + 1];
    return x->src[i] == n * x->src[i + 1] && x->dst[i] == n * x->dst[i + 1];
}

static struct dims loops(const struct cast_plan *p)
{
    struct dims x = { 0 };
    int64_t scale[NG_MAX_RANK] = { 0 }, word[NG_MAX_RANK];
    if (p->scaled)
        ng_scale_strides(p->scaled, scale);
    int64_t step = 1;
    for (uint32_t d = p->dst->rank; d-- > 0; step *= p->dst->dim[d])
        word[d] = step;
    for (uint32_t d = 0; d < p->dst->rank; d++) {
        const bool axis = p->scaled && d == p->scaled->block_axis;
        if (p->dst->dim[d] == 1 && !axis)
            continue;
        push(&x, p, d, word[d], scale);
        /* blocks belong to a dimension of their own */
        if (!p->scaled && x.rank >= 2 && merges(&x, x.rank - 2)) {
            const uint32_t i = x.rank - 2;
            x.n[i] *= x.n[i + 1];
            x.src[i] = x.src[i + 1];
            x.dst[i] = x.dst[i + 1];
            x.word[i] = x.word[i + 1];
            x.of[i] = x.of[i + 1];
            x.rank--;
        }
    }
    if (!x.rank)
        push(&x, p, 0, 1, scale);
    return x;
}

/* Elements of dimension d follow each other in both tensors (and so do their words). */
static bool runs_along(const struct dims *x, uint32_t d, bool words)
{
    return x->src[d] == 1 && x->dst[d] == 1 && (!words || x->word[d] == 1);
}

static void to_end(struct dims *x, uint32_t d)
{
    for (; d + 1 < x->rank; d++) {
        const struct dims y = *x;
        x->n[d] = y.n[d + 1], x->n[d + 1] = y.n[d];
        x->src[d] = y.src[d + 1], x->src[d + 1] = y.src[d];
        x->dst[d] = y.dst[d + 1], x->dst[d + 1] = y.dst[d];
        x->scale[d] = y.scale[d + 1], x->scale[d + 1] = y.scale[d];
        x->word[d] = y.word[d + 1], x->word[d + 1] = y.word[d];
        x->of[d] = y.of[d + 1], x->of[d + 1] = y.of[d];
    }
}

/* Where element 0 of the i-th row lies: offsets in elements, scales, words. */
struct place {
    int64_t src, dst, scale, word;
    int64_t index[NG_MAX_RANK]; /* in the order of the loops */
};

static struct place place_of(const struct dims *x, uint32_t outer, int64_t i)
{
    struct place at = { 0 };
    for (uint32_t d = outer; d-- > 0; i /= x->n[d]) {
        const int64_t j = i % x->n[d];
        at.index[d] = j;
        at.src += j * x->src[d];
        at.dst += j * x->dst[d];
        at.scale += j * x->scale[d];
        at.word += j * x->word[d];
    }
    return at;
}

static int64_t count(const struct dims *x, uint32_t outer)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < outer; d++)
        n *= x->n[d];
    return n;
}

static void *bytes_at(const void *data, const ng_format_spec *s, int64_t element)
{
    return (unsigned char *)(uintptr_t)data + element * s->store_bits / 8;
}

/* ---- Random words. ---- */

/* n elements come nearer while words are drawn; they may lie past the tensor. */
static void fetch(const void *data, const ng_format_spec *s, int64_t element, int64_t n)
{
    const uintptr_t at = (uintptr_t)data + (uintptr_t)(element * s->store_bits / 8);
    for (int64_t i = 0; i < n * s->store_bits / 8; i += 64)
        __builtin_prefetch((const void *)(at + (uintptr_t)i));
}

/* n <= DRAW words from `first` on: where they lie, or drawn into the buffer; NULL without. */
static const uint32_t *draw(const struct cast_plan *p, int64_t first, int64_t n,
                            uint32_t *buffer)
{
    if (!p->words)
        return NULL;
    const uint32_t *there = ng_stream_direct(p->words, first);
    if (there)
        return there;
    ng_stream_words(p->words, first, n, buffer);
    return buffer;
}

/* Those of n elements whose numbers are `step` apart. */
static void draw_apart(const struct cast_plan *p, int64_t first, int64_t step, int64_t n,
                       uint32_t *out)
{
    if (!p->words)
        return;
    if (step == 1)
        ng_stream_words(p->words, first, n, out);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = ng_stream_word(p->words, first + i * step);
}

/* ---- Elements one after another, gathered and scattered. ---- */

struct stage {
    uint32_t src[STAGE], dst[STAGE], word[STAGE];
};

static void gather(const void *data, const ng_format_spec *s, int64_t at, int64_t step,
                   int64_t n, void *out)
{
    for (int64_t i = 0; i < n; i++)
        ng_store_code(out, s->store_bits, i, ng_load_code(data, s->store_bits, at + i * step));
}

static void scatter(const void *in, const ng_format_spec *s, int64_t n, void *data, int64_t at,
                    int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        ng_store_code(data, s->store_bits, at + i * step, ng_load_code(in, s->store_bits, i));
}

/* ---- Conversions without scales. ---- */

struct convert_run {
    const struct cast_plan *p;
    struct dims x;
    bool direct;          /* rows lie as the kernel wants them */
    int64_t rows, pieces; /* pieces a row */
    int64_t rows_a_task;  /* where rows are short */
};

static void convert_staged(const struct convert_run *r, const struct place *at, int64_t from,
                           int64_t n)
{
    const struct cast_plan *p = r->p;
    const struct cast_job *j = &p->job;
    const uint32_t last = r->x.rank - 1;
    struct stage s;
    for (int64_t i = from; i < from + n; i += STAGE) {
        const int64_t m = from + n - i < STAGE ? from + n - i : STAGE;
        gather(p->src->data, j->from, at->src + i * r->x.src[last], r->x.src[last], m, s.src);
        draw_apart(p, at->word + i * r->x.word[last], r->x.word[last], m, s.word);
        p->kernel->convert(j, s.src, p->words ? s.word : NULL, m, s.dst);
        scatter(s.dst, j->to, m, p->dst->data, at->dst + i * r->x.dst[last], r->x.dst[last]);
    }
}

static void convert_piece(const struct convert_run *r, int64_t row, int64_t piece)
{
    const struct cast_plan *p = r->p;
    const uint32_t last = r->x.rank - 1;
    const struct place at = place_of(&r->x, last, row);
    const int64_t from = piece * PIECE, left = r->x.n[last] - from,
                  n = left < PIECE ? left : PIECE;
    if (!r->direct) {
        convert_staged(r, &at, from, n);
        return;
    }
    uint32_t buffer[DRAW];
    struct cast_job job = p->job;
    int64_t step = n;
    if (p->words && !ng_stream_direct(p->words, 0)) {
        const bool counter = p->words->source.kind == NG_RANDOM_PHILOX;
        step = counter ? BATCH : DRAW;
        job.stream &= !counter; /* pieces are too short for stores past the caches */
    }
    for (int64_t i = from; i < from + n; i += step) {
        const int64_t m = from + n - i < step ? from + n - i : step;
        p->kernel->convert(&job, bytes_at(p->src->data, p->job.from, at.src + i),
                           draw(p, at.word + i, m, buffer), m,
                           bytes_at(p->dst->data, p->job.to, at.dst + i));
    }
}

/*
 * Words of a generator that follows states: a place in its stream costs as much as thousands of
 * words. So a task takes as many stretches of the stream's rows as there are strands, and goes
 * along all of them at once, a piece at a time whose words stay in the first cache. Rows are
 * the stream's; elements before the tensor's first and behind its last are not there.
 */
struct strips {
    const struct convert_run *r;
    const struct ng_stream *words;
    struct cast_job job;   /* pieces are too short for stores past the caches */
    int64_t columns, rows; /* of the stream, those that the tensor meets */
    int64_t head;          /* words of the first row that are before the tensor's */
    int64_t wide;          /* stretches at once */
    int64_t piece;         /* words of each at a time */
    int64_t length, parts; /* a stretch; stretches of a row */
    int64_t lanes, bands;  /* whole rows: lanes; of them `wide` each, but the last */
    int64_t turns;         /* whole rows of a lane that a task follows */
    int64_t tasks;
};

struct stretch {
    int64_t src, dst; /* where its first word's element is, or would be */
    int64_t from, to; /* those of its words that are the tensor's */
};

static struct stretch stretch_at(const struct strips *s, int64_t row, int64_t part)
{
    const struct convert_run *r = s->r;
    const uint32_t last = r->x.rank - 1;
    const int64_t at = part * s->length, n = r->x.n[last], each = n / s->columns,
                  length = s->length < s->columns - at ? s->length : s->columns - at;
    int64_t element = row * s->columns + at - s->head;
    struct place place = { 0 };
    if (r->rows > 1) { /* head is 0: rows of the stream are the tensor's */
        place = place_of(&r->x, last, row / each);
        element = row % each * s->columns + at;
    }
    const int64_t left = n - element;
    return (struct stretch){
        .src = place.src + element,
        .dst = place.dst + element,
        .from = element < 0 ? -element : 0,
        .to = left < length ? left : length,
    };
}

/* The stretches of a task's turn; false: there are none. */
static bool stretches_of(const struct strips *s, int64_t task, int64_t turn, struct stretch *of,
                         uint64_t *first)
{
    const uint64_t begin = s->words->source.first / (uint64_t)s->columns;
    bool any = false;
    for (int64_t i = 0; i < s->wide; i++) {
        int64_t row, part = 0;
        bool there = true;
        if (s->turns) {
            const int64_t lane = task % s->bands * s->wide + i;
            row = (task / s->bands * s->turns + turn) * s->lanes + lane;
            there = lane < s->lanes;
        } else {
            row = (task * s->wide + i) / s->parts;
            part = (task * s->wide + i) % s->parts;
        }
        of[i] = (struct stretch){ .to = 0 };
        if (there && row < s->rows)
            of[i] = stretch_at(s, row, part);
        first[i] =
            (begin + (uint64_t)row) * (uint64_t)s->columns + (uint64_t)(part * s->length);
        if (of[i].from >= of[i].to) /* idle: on the first one's way */
            first[i] = first[0];
        else
            any = true;
    }
    return any;
}

/* The words of each stretch [from, from + n), and the elements that take them. */
static void convert_strip(const struct strips *s, const struct stretch *of, int64_t from,
                          int64_t n, struct ng_random_strands *g, uint32_t *buffer)
{
    const struct cast_plan *p = s->r->p;
    const struct cast_job *j = &s->job;
    const int64_t apart = s->piece + STRIP_APART;
    s->words->kernel->next(&s->words->source, g, n, buffer, apart);
    for (int64_t i = 0; i < s->wide; i++) {
        const int64_t a = of[i].from > from ? of[i].from : from,
                      b = of[i].to < from + n ? of[i].to : from + n;
        if (a >= b)
            continue;
        fetch(p->src->data, j->from, of[i].src + from + n, s->piece);
        p->kernel->convert(j, bytes_at(p->src->data, j->from, of[i].src + a),
                           buffer + i * apart + (a - from), b - a,
                           bytes_at(p->dst->data, j->to, of[i].dst + a));
    }
}

static void strips_task(void *arg, size_t task, size_t worker)
{
    const struct strips *s = arg;
    struct stretch of[NG_RANDOM_STRANDS];
    uint64_t first[NG_RANDOM_STRANDS];
    struct ng_random_strands g;
    _Alignas(64) uint32_t buffer[STRIP + NG_RANDOM_STRANDS * STRIP_APART];
    (void)worker;
    const uint32_t saved = ng_fp_enter();
    for (int64_t turn = 0; turn == 0 || turn < s->turns; turn++) {
        if (!stretches_of(s, (int64_t)task, turn, of, first))
            break;
        if (turn == 0)
            s->words->kernel->place(&s->words->source, s->columns, first, &g);
        /* every strand goes to its row's end */
        for (int64_t from = 0; from < s->length; from += s->piece)
            convert_strip(s, of, from,
                          s->length - from < s->piece ? s->length - from : s->piece, &g,
                          buffer);
    }
    ng_fp_leave(saved);
}

/* Does the stream follow states, and do its rows lie as stretches must? */
static bool strips_fit(const struct convert_run *r, struct strips *s)
{
    const struct cast_plan *p = r->p;
    const struct ng_random *source = p->words ? &p->words->source : NULL;
    if (!source || !r->direct || !p->words->kernel || !p->words->kernel->next)
        return false;
    const int64_t n = r->x.n[r->x.rank - 1], columns = p->words->columns;
    const int64_t states =
        source->kind == NG_RANDOM_XORWOW && source->states ? source->states : 1;
    *s = (struct strips){
        .r = r,
        .words = p->words,
        .job = p->job,
        .columns = columns,
        .head = (int64_t)(source->first % (uint64_t)columns),
        .wide = p->words->kernel->strands / states,
        .lanes = source->lanes ? source->lanes : 128,
    };
    s->job.stream = false;
    if (columns < STRIP_LEAST || (r->rows > 1 && (s->head || n % columns)))
        return false;
    if ((p->job.from->store_bits == 4 || p->job.to->store_bits == 4) &&
        (s->head % 2 || columns % 2))
        return false;
    s->rows = r->rows > 1 ? r->rows * (n / columns) : (s->head + n + columns - 1) / columns;
    s->piece = STRIP / s->wide;
    /* whole rows, unless they are long or there are too few */
    const int64_t most = STRIP_TASK / s->wide,
                  few = (s->wide + s->rows - 1) / s->rows; /* parts that fill the strands */
    s->parts = (columns + most - 1) / most;
    s->parts = s->parts > few ? s->parts : few;
    s->length = ((columns + s->parts - 1) / s->parts + STRIP_CUT - 1) / STRIP_CUT * STRIP_CUT;
    s->parts = (columns + s->length - 1) / s->length;
    if (s->parts == 1)
        s->length = columns;
    s->tasks = (s->rows * s->parts + s->wide - 1) / s->wide;
    if (s->parts == 1 && s->lanes >= s->wide && columns % states == 0) {
        const int64_t lanes = s->lanes < s->rows ? s->lanes : s->rows,
                      deep = (s->rows + s->lanes - 1) / s->lanes;
        s->turns = most / columns < deep ? most / columns : deep;
        s->bands = (lanes + s->wide - 1) / s->wide;
        s->tasks = s->bands * ((deep + s->turns - 1) / s->turns);
    }
    return true;
}

static void convert_task(void *arg, size_t task, size_t worker)
{
    const struct convert_run *r = arg;
    (void)worker;
    const uint32_t saved = ng_fp_enter();
    if (r->pieces > 1) {
        convert_piece(r, (int64_t)task / r->pieces, (int64_t)task % r->pieces);
    } else {
        const int64_t first = (int64_t)task * r->rows_a_task, end = first + r->rows_a_task;
        for (int64_t row = first; row < end && row < r->rows; row++)
            convert_piece(r, row, 0);
    }
    ng_fp_leave(saved);
}

/* On the executor, unless two tasks could meet in a byte. */
static void run_tasks(ng_ctx *ctx, int64_t tasks, bool apart,
                      void (*body)(void *arg, size_t i, size_t worker), void *arg)
{
    if (apart) {
        ng_parallel(ctx, (size_t)tasks, body, arg);
        return;
    }
    for (int64_t i = 0; i < tasks; i++)
        body(arg, (size_t)i, 0);
}

static struct convert_run convert_runs(const struct cast_plan *p)
{
    struct convert_run r = { .p = p, .x = loops(p) };
    for (uint32_t d = r.x.rank; d-- > 0 && !r.direct;)
        if (runs_along(&r.x, d, p->words)) {
            to_end(&r.x, d);
            r.direct = true;
        }
    const int64_t n = r.x.n[r.x.rank - 1];
    r.rows = count(&r.x, r.x.rank - 1);
    r.pieces = (n + PIECE - 1) / PIECE;
    r.rows_a_task = n < PIECE ? PIECE / n : 1;
    return r;
}

static int64_t convert_tasks(const struct convert_run *r)
{
    return r->pieces > 1 ? r->rows * r->pieces
                         : (r->rows + r->rows_a_task - 1) / r->rows_a_task;
}

static void run_convert(ng_ctx *ctx, const struct cast_plan *p)
{
    struct convert_run r = convert_runs(p);
    struct strips s;
    if (strips_fit(&r, &s)) {
        ng_parallel(ctx, (size_t)s.tasks, strips_task, &s);
        return;
    }
    run_tasks(ctx, convert_tasks(&r), r.direct || p->job.to->store_bits != 4, convert_task, &r);
}

/* ---- The largest magnitude of a tensor. ---- */

struct largest_run {
    struct convert_run r; /* of src alone */
    atomic_uint most;
};

static uint32_t largest_piece(const struct convert_run *r, int64_t row, int64_t piece)
{
    const struct cast_plan *p = r->p;
    const uint32_t last = r->x.rank - 1;
    const struct place at = place_of(&r->x, last, row);
    const int64_t from = piece * PIECE, left = r->x.n[last] - from,
                  n = left < PIECE ? left : PIECE;
    if (r->direct)
        return p->kernel->largest(&p->job, bytes_at(p->src->data, p->job.from, at.src + from),
                                  n);
    uint32_t most = 0, codes[STAGE];
    for (int64_t i = from; i < from + n; i += STAGE) {
        const int64_t m = from + n - i < STAGE ? from + n - i : STAGE;
        gather(p->src->data, p->job.from, at.src + i * r->x.src[last], r->x.src[last], m,
               codes);
        const uint32_t x = p->kernel->largest(&p->job, codes, m);
        most = x > most ? x : most;
    }
    return most;
}

static void largest_task(void *arg, size_t task, size_t worker)
{
    struct largest_run *l = arg;
    const struct convert_run *r = &l->r;
    (void)worker;
    const uint32_t saved = ng_fp_enter();
    uint32_t most = 0;
    const int64_t rows = r->pieces > 1 ? 1 : r->rows_a_task,
                  first = r->pieces > 1 ? (int64_t)task / r->pieces : (int64_t)task * rows;
    for (int64_t row = first; row < first + rows && row < r->rows; row++) {
        const uint32_t x = largest_piece(r, row, r->pieces > 1 ? (int64_t)task % r->pieces : 0);
        most = x > most ? x : most;
    }
    unsigned seen = atomic_load_explicit(&l->most, memory_order_relaxed);
    while (most > seen &&
           !atomic_compare_exchange_weak_explicit(&l->most, &seen, most, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
    ng_fp_leave(saved);
}

uint32_t ng_cast_largest(ng_ctx *ctx, const struct cast_plan *p)
{
    struct cast_plan alone = *p;
    alone.dst = p->src;
    alone.scaled = NULL;
    alone.words = NULL;
    struct largest_run l = { .r = convert_runs(&alone) };
    atomic_init(&l.most, 0);
    ng_parallel(ctx, (size_t)convert_tasks(&l.r), largest_task, &l);
    return atomic_load(&l.most);
}

/* ---- With block scales. ---- */

typedef enum scaled_way {
    BLOCKS_ALONG,  /* the blocks' dimension runs along in both tensors */
    BLOCKS_ACROSS, /* another one does: a row is an element of each of many blocks */
    BLOCKS_STAGED  /* neither: one block after another, gathered */
} scaled_way;

struct scaled_run {
    const struct cast_plan *p;
    struct dims x;
    uint32_t axis, along; /* positions in x; along: ACROSS */
    scaled_way way;
    int64_t block, blocks, n; /* n: length of the axis */
    int64_t chunk, chunks;    /* ALONG: elements; ACROSS: columns */
    int64_t rows, together;   /* ALONG: all; those that one task takes as one */
};

/* Element numbers of a block's runs along the axis: run r begins at begin + r * jump. */
struct runs {
    int64_t begin, jump, run, n;
};

static struct runs runs_of(const struct scaled_run *r, int64_t g)
{
    const ng_tensor *t = r->p->scaled;
    const int64_t left = r->n - g * r->block;
    if (t->layout != NG_LAYOUT_TRN_WRAP)
        return (struct runs){ g * r->block, 0, r->block, left < r->block ? left : r->block };
    const int64_t groups = WRAP_TILE / r->block, tile = g / groups,
                  deep = r->n - tile * WRAP_TILE;
    const int64_t rows = (deep < WRAP_TILE ? deep : WRAP_TILE) / (WRAP_TILE / 128);
    return (struct runs){ tile * WRAP_TILE + g % groups * WRAP_RUN, rows, WRAP_RUN, r->block };
}

static bool call(const struct cast_plan *p, cast_way way, const struct cast_rows *rows)
{
    if (!p->job.quantize)
        return p->kernel->dequantize(&p->job, way, rows);
    p->kernel->quantize(&p->job, way, rows);
    return true;
}

/* The reference for n elements of x's dimension d from `from` on; if d is not the axis, for
 * `depth` of them along it from k on. */
static void by_reference(const struct scaled_run *r, const struct place *at, uint32_t d,
                         int64_t from, int64_t n, int64_t k, int64_t depth)
{
    int64_t first[NG_MAX_RANK] = { 0 }, dims[NG_MAX_RANK] = { 1, 1, 1, 1 };
    for (uint32_t i = 0; i < r->x.rank; i++)
        first[r->x.of[i]] = at->index[i];
    if (d != r->axis) {
        first[r->x.of[r->axis]] = k;
        dims[r->x.of[r->axis]] = depth;
    }
    first[r->x.of[d]] = from;
    dims[r->x.of[d]] = n;
    r->p->reference(r->p->arg, first, dims);
}

static void along_task(const struct scaled_run *r, int64_t task)
{
    const struct cast_plan *p = r->p;
    const int64_t row = task / r->chunks * r->together,
                  rows_here = r->rows - row < r->together ? r->rows - row : r->together;
    const struct place at = place_of(&r->x, r->x.rank - 1, row);
    const int64_t from = task % r->chunks * r->chunk, left = r->n - from,
                  length = left < r->chunk ? left : r->chunk, n = rows_here * length;
    uint32_t buffer[DRAW];
    const struct cast_rows rows = {
        .src = bytes_at(p->src->data, p->job.from, at.src + from),
        .dst = bytes_at(p->dst->data, p->job.to, at.dst + from),
        .scale = (uint8_t *)p->scaled->scale + at.scale + from / r->block * r->x.scale[r->axis],
        .word = draw(p, at.word + from, n, buffer),
        .rows = 1,
        .run = 1,
        .n = n,
        .scale_step = r->x.scale[r->axis],
    };
    if (call(p, CAST_ALONG, &rows))
        return;
    for (int64_t i = 0; i < rows_here; i++) {
        const struct place one = place_of(&r->x, r->x.rank - 1, row + i);
        by_reference(r, &one, r->axis, from, length, 0, 0);
    }
}

static void across_task(const struct scaled_run *r, int64_t task)
{
    const struct cast_plan *p = r->p;
    const int64_t chunk = task % r->chunks, g = task / r->chunks % r->blocks;
    struct dims x = r->x; /* the outer loops: all but the axis and the columns */
    x.n[r->axis] = x.n[r->along] = 1;
    const struct place at = place_of(&x, x.rank, task / r->chunks / r->blocks);
    const struct runs k = runs_of(r, g);
    const int64_t col = chunk * r->chunk, cols = r->x.n[r->along],
                  n = cols - col < r->chunk ? cols - col : r->chunk;
    const int64_t src = r->x.src[r->axis], dst = r->x.dst[r->axis], word = r->x.word[r->axis];
    uint32_t buffer[DRAW];
    const bool drawn = p->words && !ng_stream_direct(p->words, 0);
    for (int64_t i = 0; drawn && i < k.n; i++)
        draw_apart(p, at.word + (k.begin + i / k.run * k.jump + i % k.run) * word + col, 1, n,
                   buffer + i * n);
    const struct cast_rows rows = {
        .src = bytes_at(p->src->data, p->job.from, at.src + k.begin * src + col),
        .dst = bytes_at(p->dst->data, p->job.to, at.dst + k.begin * dst + col),
        .scale = (uint8_t *)p->scaled->scale + at.scale + g * r->x.scale[r->axis] +
                 col * r->x.scale[r->along],
        .word = drawn ? buffer : draw(p, at.word + k.begin * word + col, 0, buffer),
        .rows = k.n,
        .n = n,
        .src_step = src * p->job.from->store_bits / 8,
        .dst_step = dst * p->job.to->store_bits / 8,
        .word_step = drawn ? n : word,
        .run = k.run,
        .src_jump = k.jump * src * p->job.from->store_bits / 8,
        .dst_jump = k.jump * dst * p->job.to->store_bits / 8,
        .word_jump = drawn ? k.run * n : k.jump * word,
        .scale_step = r->x.scale[r->along],
    };
    if (call(p, CAST_ACROSS, &rows))
        return;
    for (int64_t b = 0; b < k.n; b += k.run)
        by_reference(r, &at, r->along, col, n, k.begin + b / k.run * k.jump,
                     k.run < k.n - b ? k.run : k.n - b);
}

static void staged_block(const struct scaled_run *r, const struct place *at, int64_t g)
{
    const struct cast_plan *p = r->p;
    const struct cast_job *j = &p->job;
    const struct runs k = runs_of(r, g);
    const int64_t src = r->x.src[r->axis], dst = r->x.dst[r->axis], word = r->x.word[r->axis];
    struct stage s;
    for (int64_t b = 0, first = k.begin; b < k.n; b += k.run, first += k.jump) {
        const int64_t m = k.n - b < k.run ? k.n - b : k.run;
        gather(p->src->data, j->from, at->src + first * src, src, m,
               bytes_at(s.src, j->from, b));
        draw_apart(p, at->word + first * word, word, m, s.word + b);
    }
    const struct cast_rows rows = {
        .src = s.src,
        .dst = s.dst,
        .scale = (uint8_t *)p->scaled->scale + at->scale + g * r->x.scale[r->axis],
        .word = p->words ? s.word : NULL,
        .rows = 1,
        .run = 1,
        .n = k.n,
        .scale_step = r->x.scale[r->axis],
    };
    const bool done = call(p, CAST_ALONG, &rows);
    for (int64_t b = 0, first = k.begin; b < k.n; b += k.run, first += k.jump) {
        const int64_t m = k.n - b < k.run ? k.n - b : k.run;
        if (done)
            scatter(bytes_at(s.dst, j->to, b), j->to, m, p->dst->data, at->dst + first * dst,
                    dst);
        else
            by_reference(r, at, r->axis, first, m, 0, 0);
    }
}

static void scaled_task(void *arg, size_t task, size_t worker)
{
    const struct scaled_run *r = arg;
    (void)worker;
    const uint32_t saved = ng_fp_enter();
    if (r->way == BLOCKS_ALONG) {
        along_task(r, (int64_t)task);
    } else if (r->way == BLOCKS_ACROSS) {
        across_task(r, (int64_t)task);
    } else {
        const struct place at = place_of(&r->x, r->x.rank - 1, (int64_t)task);
        for (int64_t g = 0; g < r->blocks; g++)
            staged_block(r, &at, g);
    }
    ng_fp_leave(saved);
}

static uint32_t position_of(const struct dims *x, uint32_t dimension)
{
    uint32_t i = 0;
    while (i + 1 < x->rank && x->of[i] != dimension)
        i++;
    return i;
}

/* A 4-bit row of an across walk begins on a byte if its stride is whole bytes. */
static bool byte_rows(const struct scaled_run *r)
{
    const uint32_t a = r->axis;
    return (r->p->job.from->store_bits != 4 || r->x.src[a] % 2 == 0) &&
           (r->p->job.to->store_bits != 4 || r->x.dst[a] % 2 == 0);
}

/* Rows of whole blocks follow one another in all that a task reads and writes: a kernel takes
 * them as one. */
static bool rows_follow(const struct scaled_run *r)
{
    const struct dims *x = &r->x;
    int64_t n = r->n;
    bool follow = n % r->p->scaled->block == 0 && n * r->p->job.from->store_bits % 8 == 0 &&
                  n * r->p->job.to->store_bits % 8 == 0;
    for (uint32_t d = x->rank - 1; d-- > 0; n *= x->n[d])
        follow = follow && x->src[d] == n && x->dst[d] == n &&
                 (!r->p->words || x->word[d] == n) &&
                 x->scale[d] == n / r->block * x->scale[r->axis];
    return follow;
}

static scaled_way choose_way(struct scaled_run *r)
{
    const bool wrap = r->p->scaled->layout == NG_LAYOUT_TRN_WRAP;
    if (!wrap && runs_along(&r->x, r->axis, r->p->words))
        return BLOCKS_ALONG;
    for (uint32_t d = 0; d < r->x.rank; d++)
        if (d != r->axis && runs_along(&r->x, d, r->p->words) && byte_rows(r)) {
            r->along = d;
            return BLOCKS_ACROSS;
        }
    return BLOCKS_STAGED;
}

static void run_scaled(ng_ctx *ctx, const struct cast_plan *p)
{
    struct scaled_run r = { .p = p, .x = loops(p), .block = p->scaled->block };
    r.axis = position_of(&r.x, p->scaled->block_axis);
    r.n = r.x.n[r.axis];
    r.block = r.block < r.n ? r.block : r.n;
    r.blocks = ng_n_blocks(p->scaled);
    r.way = choose_way(&r);
    int64_t tasks = count(&r.x, r.x.rank) / r.n;
    const bool drawn = p->words && !ng_stream_direct(p->words, 0);
    const int64_t piece = drawn ? DRAW : PIECE;
    if (r.way == BLOCKS_ACROSS) {
        r.chunk =
            drawn ? DRAW / r.block & ~1 : COLUMNS; /* even: 4-bit columns begin on bytes */
        r.chunks = (r.x.n[r.along] + r.chunk - 1) / r.chunk;
        tasks = tasks / r.x.n[r.along] * r.blocks * r.chunks;
    } else {
        to_end(&r.x, r.axis);
        r.axis = r.x.rank - 1;
        r.chunk = r.block < piece ? piece / r.block * r.block : r.block;
        r.chunks = (r.n + r.chunk - 1) / r.chunk;
        r.rows = tasks;
        r.together = r.n <= r.chunk / 2 && rows_follow(&r) ? r.chunk / r.n : 1;
        if (r.way == BLOCKS_ALONG)
            tasks = (tasks + r.together - 1) / r.together * r.chunks;
    }
    run_tasks(ctx, tasks, r.way != BLOCKS_STAGED || p->job.to->store_bits != 4, scaled_task,
              &r);
}

void ng_cast_run(ng_ctx *ctx, const struct cast_plan *p)
{
    if (p->scaled)
        run_scaled(ctx, p);
    else
        run_convert(ctx, p);
}

/* ---- A matrix and its transpose. ---- */

enum {
    BOTH_BLOCK = 32,
    BOTH_DEEP = CAST_TURN, /* rows of a strip: two blocks of the transpose, a line of memory */
    BOTH_WIDE = 512 /* columns of a tile, which stays in the second cache: what kernels take of
                       a row at a time */
};

struct both_run {
    const struct cast_plan *p, *t;
    struct cast_job along, across; /* across writes a byte a code */
    ng_format_spec bytes;          /* its format, stored so */
    int64_t rows, cols, src_row, dst_row, dst_t_row;
    int64_t scale[2], scale_t[2]; /* strides along rows and blocks */
    int64_t strips;
};

/* The blocks of a tile's rows. */
static void both_along(const struct both_run *r, int64_t row, int64_t rows, int64_t col,
                       int64_t cols)
{
    const struct cast_plan *p = r->p;
    const struct cast_rows all = {
        .src = bytes_at(p->src->data, p->job.from, row * r->src_row + col),
        .dst = bytes_at(p->dst->data, p->job.to, row * r->dst_row + col),
        .scale =
            (uint8_t *)p->dst->scale + row * r->scale[0] + col / p->job.block * r->scale[1],
        .rows = rows,
        .n = cols,
        .src_step = r->src_row * p->job.from->store_bits / 8,
        .dst_step = r->dst_row * p->job.to->store_bits / 8,
        .scale_step = r->scale[1],
        .scale_row = r->scale[0],
    };
    p->kernel->quantize(&r->along, CAST_ALONG, &all);
}

/* The blocks of its columns, turned. */
static void both_across(const struct both_run *r, int64_t row, int64_t rows, int64_t col,
                        int64_t cols)
{
    const struct cast_plan *p = r->p, *t = r->t;
    uint8_t codes[BOTH_DEEP][BOTH_WIDE];
    if (rows < BOTH_DEEP || cols < BOTH_WIDE) /* whole squares are turned */
        memset(codes, 0, sizeof codes);
    for (int64_t i = 0; i < rows; i += BOTH_BLOCK) {
        const int64_t some = rows - i < BOTH_BLOCK ? rows - i : BOTH_BLOCK;
        const struct cast_rows strip = {
            .src = bytes_at(p->src->data, p->job.from, (row + i) * r->src_row + col),
            .dst = codes[i],
            .scale = (uint8_t *)t->dst->scale + col * r->scale_t[0] +
                     (row + i) / BOTH_BLOCK * r->scale_t[1],
            .rows = some,
            .run = some,
            .n = cols,
            .src_step = r->src_row * p->job.from->store_bits / 8,
            .dst_step = BOTH_WIDE,
            .scale_step = r->scale_t[0],
        };
        t->kernel->quantize(&r->across, CAST_ACROSS, &strip);
    }
    const ng_format_spec *to = t->job.to;
    const struct cast_turn turn = {
        .codes = codes[0],
        .step = BOTH_WIDE,
        .rows = rows,
        .n = cols,
        .to = bytes_at(t->dst->data, to, col * r->dst_t_row + row),
        .step_to = r->dst_t_row * to->store_bits / 8,
        .halves = to->store_bits == 4,
        .stream = t->job.stream,
    };
    t->kernel->turn(&turn);
}

static void both_task(void *arg, size_t task, size_t worker)
{
    const struct both_run *r = arg;
    (void)worker;
    const uint32_t saved = ng_fp_enter();
    const int64_t row = (int64_t)task % r->strips * BOTH_DEEP,
                  col = (int64_t)task / r->strips * BOTH_WIDE,
                  rows = r->rows - row < BOTH_DEEP ? r->rows - row : BOTH_DEEP,
                  cols = r->cols - col < BOTH_WIDE ? r->cols - col : BOTH_WIDE;
    both_along(r, row, rows, col, cols);
    both_across(r, row, rows, col, cols);
    ng_fp_leave(saved);
}

/* Rows along in all three, blocks of 32 along K on both sides, no words to turn. */
static bool both_fit(const struct cast_plan *p, const struct cast_plan *t)
{
    const ng_tensor *d[] = { p->dst, t->dst };
    for (int i = 0; i < 2; i++)
        if (d[i]->stride[1] != 1 || d[i]->block_axis != 1 ||
            d[i]->layout == NG_LAYOUT_TRN_WRAP || d[i]->dim[1] < BOTH_BLOCK)
            return false;
    return p->src->stride[1] == 1 && p->job.block == BOTH_BLOCK && t->job.block == BOTH_BLOCK &&
           !p->words && (p->job.from->store_bits != 4 || p->src->stride[0] % 2 == 0);
}

bool ng_cast_both(ng_ctx *ctx, struct cast_plan *p, struct cast_plan *t)
{
    if (!both_fit(p, t))
        return false;
    ng_cast_pick(ctx, t);
    ng_cast_pick(ctx, p);
    if (!p->kernel || !t->kernel || !t->kernel->turn)
        return false;
    struct both_run r = { .p = p,
                          .t = t,
                          .along = p->job,
                          .across = t->job,
                          .bytes = *t->job.to,
                          .rows = p->src->dim[0],
                          .cols = p->src->dim[1],
                          .src_row = p->src->stride[0],
                          .dst_row = p->dst->stride[0],
                          .dst_t_row = t->dst->stride[0] };
    int64_t strides[NG_MAX_RANK] = { 0 };
    ng_scale_strides(p->dst, strides);
    memcpy(r.scale, strides, sizeof r.scale);
    ng_scale_strides(t->dst, strides);
    memcpy(r.scale_t, strides, sizeof r.scale_t);
    r.bytes.store_bits = 8;
    r.across.to = &r.bytes;
    r.along.stream = r.across.stream = false;
    r.along.ahead = BOTH_DEEP * r.src_row * p->job.from->store_bits / 8; /* the next tile */
    r.strips = (r.rows + BOTH_DEEP - 1) / BOTH_DEEP;
    ng_parallel(ctx, (size_t)(r.strips * ((r.cols + BOTH_WIDE - 1) / BOTH_WIDE)), both_task,
                &r);
    return true;
}
