// Vector loops without intrinsics: the compiler vectorises a function, once per instruction set, and the loader chooses
// one when the program starts. Inner functions are inlined into each clone.
#pragma once

// Not under ThreadSanitizer: the loader calls the functions that choose a clone before the sanitizer's runtime is
// ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define MR_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
// For functions that have another implementation for the processors of the first kind.
#define MR_SIMD_TO_V3 __attribute__((target_clones("arch=x86-64-v3", "default")))
// For functions that are called on processors of the first kind alone.
#define MR_SIMD_V4 __attribute__((target("arch=x86-64-v4")))
#else
#define MR_SIMD
#define MR_SIMD_TO_V3
#define MR_SIMD_V4
#endif
#define MR_INLINE inline __attribute__((always_inline))
