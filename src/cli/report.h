/* SPDX-License-Identifier: Apache-2.0 */
/* What reports of differences share: counts by class, and findings. docs/cli.md. */
#ifndef NG_CLI_REPORT_H
#define NG_CLI_REPORT_H

#include "explain.h"

/* {"code": "0x3f80", "value": "1"} */
json_t *code_json(ng_format format, uint32_t code);
/* "[2, 3]": the index of a row-major number. */
void index_text(const ng_tensor *t, int64_t number, char *text, size_t bytes);

/* "  12 codes apart", or the class, and the end of the line. */
void print_distance(const struct diff *d);

/* How many of `what` were compared, how many differ, and of which classes those are. */
void print_counts(const char *what, const struct comparison *r);
json_t *counts_json(const struct comparison *r);

/* It explains everything that was looked at and breaks nothing of it. */
bool finding_is_certain(const struct finding *f);
/* More of what differs than chance would, and by far more than it breaks. */
bool finding_is_close(const struct finding *f);
/* So many of the best are certain. */
size_t findings_certain(const struct findings *f);
/* The rules tried, best first, and the verdict. */
void print_findings(const struct cli *cli, const struct findings *f);
json_t *findings_json(const struct findings *f);
/* What each wrong rule would change. */
void print_sensitivity(const struct findings *f);
json_t *sensitivity_json(const struct findings *f);

/* The end of a verify's report: all cases together (of `report`, which it takes, with --json).
 * The exit code. */
int verify_total(const struct cli *cli, json_t *report, int64_t cases, int64_t elements,
                 int64_t differ, double seconds);

#endif
