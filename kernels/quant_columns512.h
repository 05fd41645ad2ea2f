/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks in columns, from FP32 or bf16, ties to even, by the sums of quant_rows512.h: a lane is
 * a column, and QUANT_COLUMNS of them fill a line of memory with 8-bit codes. quantize.h
 * includes this and takes all else.
 */
#ifndef NG_KERNELS_QUANT_COLUMNS512_H
#define NG_KERNELS_QUANT_COLUMNS512_H

enum {
    QUANT_COLUMNS = 64,
    QUANT_PARTS = QUANT_COLUMNS / VL
};

/* The largest magnitudes' patterns of a block's columns; of halves those of even ones, then of
 * odd ones, of each 32. */
CAST_INLINE void quant_column_tops(const struct cast_rows *r, const uint8_t *src,
                                   const int half, ivec top[QUANT_PARTS])
{
    const int loads = half ? QUANT_PARTS / 2 : QUANT_PARTS;
    const ivec magnitude = iv_all(half ? 0x7FFF7FFFu : 0x7FFFFFFFu);
    ivec m[QUANT_PARTS];
    for (int v = 0; v < loads; v++)
        m[v] = iv_all(0);
    for (int64_t p = 0; p < r->rows; p++) {
        const uint8_t *s = src + quant_at(r, p, r->src_step, r->src_jump);
        for (int v = 0; v < loads; v++)
            m[v] = iv_larger(m[v], iv_and(iv_load(s + 64 * v), magnitude), half);
    }
    for (int v = 0; v < QUANT_PARTS; v++) {
        if (!half)
            top[v] = m[v];
        else
            top[v] = v % 2 ? iv_and(m[v / 2], iv_all(0xFFFF0000u)) : iv_sll_by(m[v / 2], 16);
    }
}

/* A block of rows, columns from `col` on. False: their elements need more than sums. */
CAST_INLINE int quant_column_sums(const struct quant *q, const struct cast_rows *r, int64_t col,
                                  const int half, const uint32_t bits, const int stream)
{
    const struct quant_places places = quant_places(q);
    const int64_t in = half ? 64 : 128;
    const uint8_t *src = (const uint8_t *)r->src + in / IV_GROUP * col;
    uint8_t *dst = (uint8_t *)r->dst + cast_bytes(bits, col), scale[QUANT_COLUMNS];
    ivec top[QUANT_PARTS], code[QUANT_PARTS];
    vec most[QUANT_PARTS], low[QUANT_PARTS], times[QUANT_PARTS];
    int quick = 1;
    quant_column_tops(r, src, half, top);
    for (int v = 0; v < QUANT_PARTS; v++) {
        ivec of[3];
        quick &= quant_sums_of(q, top[v], &of[0], &of[1], &of[2], &code[v]);
        most[v] = iv_float(of[0]);
        low[v] = iv_float(of[1]);
        times[v] = iv_float(of[2]);
    }
    if (!quick)
        return 0;
    iv_store8_of(scale, iv_halves(code[0], code[1], 0, half),
                 iv_halves(code[2], code[3], 0, half), 0);
    for (int c = 0; c < QUANT_COLUMNS; c++)
        r->scale[(col + c) * r->scale_step] = scale[c];
    for (int64_t p = 0; p < r->rows; p++) {
        const uint8_t *s = src + quant_at(r, p, r->src_step, r->src_jump);
        uint8_t *out = dst + quant_at(r, p, r->dst_step, r->dst_jump);
        for (int64_t at = 0; at < 2 * in; at += 64)
            near_ask(s + 2 * in + at, places.second);
        const ivec x = quant_codes_by(&places, s, most, low, times, half),
                   y = quant_codes_by(&places, s + in, most + 2, low + 2, times + 2, half);
        if (bits == 4)
            iv_store4_of(out, x, y, 0);
        else
            iv_store8_of(out, x, y, stream);
    }
    return 1;
}

/* Of columns from the first on, how many are done: groups of QUANT_COLUMNS. */
CAST_INLINE int64_t quant_column_groups(const struct quant *q, const struct cast_rows *r,
                                        const int half, const uint32_t bits)
{
    const int stream =
        bits == 8 && q->job->stream &&
        (((uintptr_t)r->dst | (uintptr_t)r->dst_step | (uintptr_t)r->dst_jump) & 63) == 0;
    int64_t col = 0;
    for (; col + QUANT_COLUMNS <= r->n; col += QUANT_COLUMNS)
        if (!quant_column_sums(q, r, col, half, bits, stream))
            for (int64_t c = col; c < col + QUANT_COLUMNS; c += IV_GROUP)
                quant_columns(q, r, c, NG_ROUND_TIES_TO_EVEN, NG_SR_A, 1);
    if (stream)
        _mm_sfence();
    return col;
}

static __attribute__((noinline)) int64_t quant_quick_columns(const struct quant *q,
                                                             const struct cast_rows *r)
{
    if (!quant_takes_sums(q))
        return 0;
    if (q->from.shape == CAST_RAW)
        return q->to.store_bits == 4 ? quant_column_groups(q, r, 1, 4)
                                     : quant_column_groups(q, r, 1, 8);
    return q->to.store_bits == 4 ? quant_column_groups(q, r, 0, 4)
                                 : quant_column_groups(q, r, 0, 8);
}

#endif
