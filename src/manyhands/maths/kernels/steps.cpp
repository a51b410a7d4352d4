// Steps of optimizers on a slice of the flat vector, in one pass through memory each.

#include "team.h"
#include "vectors.h"

extern "C" double sum_of_squares(const float *of, long count) {
    Vector sums[4] = {};
    long i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int v = 0; v < 4; v++) {
            const Vector x = load(of + i + v * LANES);
            sums[v] += x * x;
        }
    for (; i < count; i += LANES) {
        const Vector x = load(of + i, count - i);
        sums[0] += x * x;
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

static inline Vector root(Vector of) {
    Vector found;
    for (int i = 0; i < LANES; i++) found[i] = std::sqrt(of[i]);
    return found;
}

// a b + c, rounded once.
static inline Vector fused(Vector a, Vector b, Vector c) {
    Vector found;
    for (int i = 0; i < LANES; i++) found[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return found;
}

struct Adam {
    float *vector;
    const float *gradient;
    float *mean, *square;
    long count;
    float rate, rest1, beta2, rest2, eps, root_of_bias;
};

constexpr long SHARE = 1 << 13;  // numbers that a thread takes at once

// It rounds as torch's kernel does.
static void adam_share(const Adam &of, int number) {
    const long begin = number * SHARE, end = begin + SHARE < of.count ? begin + SHARE : of.count;
    for (long i = begin; i < end; i += LANES) {
        const long left = end - i;
        const Vector g = load(of.gradient + i, left);
        const Vector before = load(of.mean + i, left);
        const Vector m = fused(each(of.rest1), g - before, before);
        const Vector s = fused(of.rest2 * g, g, of.beta2 * load(of.square + i, left));
        store(of.mean + i, m, left);
        store(of.square + i, s, left);
        const Vector step = -of.rate * m / (root(s) / of.root_of_bias + of.eps);
        store(of.vector + i, load(of.vector + i, left) + step, left);
    }
}

// `rest1`, `rest2`: 1 - beta1, 1 - beta2.
extern "C" void adam(float *vector, const float *gradient, float *mean, float *square, long count,
                     float rate, float rest1, float beta2, float rest2, float eps, float root_of_bias,
                     int threads) {
    const Adam of{vector, gradient, mean, square, count, rate, rest1, beta2, rest2, eps, root_of_bias};
    share(threads, (int)((count + SHARE - 1) / SHARE), adam_share, of);
}
