/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Angles of the rotary embedding, for tests/model/angles.py to judge.
 *   test_angle --print POSITION ...   a line a position: 32 frequencies, then cosines, then
 * sines test_angle [--all]                are all roundings decided, of every 16th position or
 * of all?
 */
#include <stdlib.h>
#include <string.h>

#include "layer.h"

enum {
    CONTEXT = 131072 /* positions of gpt-oss-20b */
};

static int print_angles(int n, char **position)
{
    for (int i = 0; i < n; i++) {
        uint16_t c[LAYER_PAIRS], s[LAYER_PAIRS];
        bool decided = true;
        for (int e = 0; e < LAYER_PAIRS; e++)
            decided = layer_angle(strtoll(position[i], NULL, 10), e, &c[e], &s[e]) && decided;
        if (!decided)
            return 1;
        for (int e = 0; e < LAYER_PAIRS; e++)
            printf("%x ", (unsigned)layer_frequency(e));
        for (int e = 0; e < LAYER_PAIRS; e++)
            printf("%x ", (unsigned)c[e]);
        for (int e = 0; e < LAYER_PAIRS; e++)
            printf("%x%c", (unsigned)s[e], e + 1 < LAYER_PAIRS ? ' ' : '\n');
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--print") == 0)
        return print_angles(argc - 2, argv + 2);
    const int64_t step = argc > 1 && strcmp(argv[1], "--all") == 0 ? 1 : 16;
    long angles = 0, undecided = 0;
    for (int64_t t = 0; t < CONTEXT; t += step)
        for (int e = 0; e < LAYER_PAIRS; e++) {
            uint16_t c, s;
            angles++;
            undecided += !layer_angle(t, e, &c, &s);
        }
    printf("angles: %ld, %ld undecided\n", angles, undecided);
    return undecided ? 1 : 0;
}
