/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the JSON of a case. Every function here returns false after it has reported what is
 * wrong, with the key that it is wrong at; the exit code is then in the reader.
 */
#ifndef NG_CLI_READER_H
#define NG_CLI_READER_H

#include "case.h"

/* Where in which file, for messages. */
struct reader {
    const char *path;         /* of the case */
    size_t folder;            /* bytes of the path that file names are relative to */
    const struct st_file *st; /* the safetensors file that the case lies in, or NULL */
    bool outputs;             /* results must have files */
    int n;                    /* of the case */
    enum op op;               /* of the case */
    int code;                 /* exit code of the failure */
    bool options; /* the case was made of command line options: faults in it are usage */
    json_t *set;  /* what the command line sets in the cases' profiles, or NULL */
};

__attribute__((format(printf, 2, 3))) bool reader_fail(struct reader *r, const char *format,
                                                       ...);
/* A key as whoever wrote it knows it: "exp_table", or "--exp-table" of a command line. */
struct code_text reader_name(const struct reader *r, const char *key);
/* Every key of `object` must be in the NULL-terminated list. */
bool reader_keys(struct reader *r, json_t *object, const char *what, const char *const *keys);

/* Members of `object`; one that is absent leaves its value alone, or makes a string NULL. */
bool reader_string(struct reader *r, json_t *object, const char *key, const char **text);
bool reader_bool(struct reader *r, json_t *object, const char *key, bool *value);
bool reader_number(struct reader *r, json_t *object, const char *key, int64_t low, int64_t high,
                   int64_t *value);
bool reader_pattern(struct reader *r, json_t *object, const char *key, uint32_t *value);
/* A pattern, "0x3f800000", or a number, which is rounded once to FP32. */
bool reader_real(struct reader *r, json_t *object, const char *key, uint32_t *value);
/* +0, which the library takes for no factor at all, is refused; `instead` says that. */
bool reader_not_zero(struct reader *r, json_t *object, const char *key, uint32_t value,
                     const char *instead);
bool reader_format(struct reader *r, json_t *object, const char *key, ng_format *format);
/* One of the names in a list that spaces part, "low high"; its place in the list. */
bool reader_choice(struct reader *r, json_t *object, const char *key, const char *names,
                   int *value);

/* An array of a tensor's object: elements of `format`, or plain integers. */
bool reader_array(struct reader *r, json_t *object, const char *name, ng_format format,
                  bool plain, struct io_array *out);
bool reader_has_data(struct reader *r, json_t *object);
/* A tensor with format, scales and tags. An output has its file only where results must. */
bool reader_tensor(struct reader *r, json_t *object, const char *name, bool output,
                   struct operand *o);
bool reader_cast(struct reader *r, json_t *object, const char *what, ng_cast *cast,
                 struct words *w);
/* "fp4_map": 16 codes into `code`, and their format; op->fp4_map is then `code`. */
bool reader_fp4_map(struct reader *r, json_t *object, ng_gemm_op *op, uint8_t *code);
bool reader_profile(struct reader *r, json_t *root, struct one_case *c);

#endif
