// Vectors of floats as wide as the processor's registers, by the extensions of GCC and Clang.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int WIDE = 2;   // vectors of a panel
constexpr int TALL = 12;  // rows of a tile: 12 x 2 sums, 2 columns and a row fit 32 registers
#elif defined(__aarch64__)
constexpr int LANES = 4;
constexpr int WIDE = 4;
constexpr int TALL = 5;
#else
constexpr int LANES = 8;
constexpr int WIDE = 2;
constexpr int TALL = 6;  // 16 registers
#endif

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Mask __attribute__((vector_size(LANES * 4)));
static const Vector ZERO = {};

static inline Vector load(const float *from) {
    Vector found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

static inline void store(float *to, Vector value) { std::memcpy(to, &value, sizeof value); }

// The same for the first `count` numbers; the others are 0, or stay as they are.
static inline Vector load(const float *from, int count) {
    if (count >= LANES) return load(from);
    Vector found = ZERO;
    std::memcpy(&found, from, count * sizeof(float));
    return found;
}

static inline void store(float *to, Vector value, int count) {
    if (count >= LANES) return store(to, value);
    std::memcpy(to, &value, count * sizeof(float));
}

static inline Vector each(float number) { return number - ZERO; }

static inline float sum(Vector of) {
    float total[LANES];
    std::memcpy(total, &of, sizeof of);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) total[i] += total[i + half];
    return total[0];
}

// Like torch, both keep what is not a number.
static inline Vector relu(Vector x) { return x < ZERO ? ZERO : x; }
static inline Vector through_relu(Vector gradient, Vector output) {
    return output <= ZERO ? ZERO : gradient;
}

// Exchanges rows and columns of LANES vectors: blocks of `STEP` numbers, then of twice as many.
template <int STEP = 1>
static inline void transpose(Vector *rows) {
#if defined(__clang__)  // it has no such shuffle
    float all[LANES][LANES];
    std::memcpy(all, rows, sizeof all);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) rows[i][j] = all[j][i];
#else
    Mask low = {}, high = {};  // constants: the loop is unrolled
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        low[i] = i & STEP ? LANES + i - STEP : i;
        high[i] = i & STEP ? LANES + i : i + STEP;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (i & STEP) continue;
        const Vector a = rows[i], b = rows[i + STEP];
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i + STEP] = __builtin_shuffle(a, b, high);
    }
    if constexpr (2 * STEP < LANES) transpose<2 * STEP>(rows);
#endif
}
