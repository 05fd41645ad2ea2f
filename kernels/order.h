/* SPDX-License-Identifier: Apache-2.0 */
/* What compilers are told about order. None of it is an instruction, or changes a value. */
#ifndef NG_KERNELS_ORDER_H
#define NG_KERNELS_ORDER_H

/* Vectors of an array are names of registers: left alone, compilers unroll a loop over them too
 * late to see that, or not at all. */
#ifdef __clang__
#define ORDER_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ORDER_UNROLL _Pragma("GCC unroll 16")
#endif

/*
 * Vector x is there before anything is read by way of pointer p from here on. Left alone, what
 * many products take from memory is read at the beginning of all of them; what has no register
 * then goes back to memory, and so on for every product.
 */
#ifdef NG_EMULATE_AVX512 /* vectors are structures */
#define ORDER_AFTER(p, x) (void)(x)
#else
#define ORDER_AFTER(p, x) __asm__("" : "+r"(p) : "v"(x))
#endif

/* Pointer p has a register of its own, however far from another it is known to be. */
#define ORDER_APART(p) __asm__("" : "+r"(p))

#endif
