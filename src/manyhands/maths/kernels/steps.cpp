// Steps of optimizers on a slice of the flat vector, in one pass through memory each.

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

// It rounds as torch's kernel does. `rest1`, `rest2`: 1 - beta1, 1 - beta2.
extern "C" void adam(float *vector, const float *gradient, float *mean, float *square, long count,
                     float rate, float rest1, float beta2, float rest2, float eps, float root_of_bias) {
    for (long i = 0; i < count; i += LANES) {
        const long left = count - i;
        const Vector g = load(gradient + i, left);
        const Vector before = load(mean + i, left);
        const Vector m = fused(each(rest1), g - before, before);
        const Vector s = fused(rest2 * g, g, beta2 * load(square + i, left));
        store(mean + i, m, left);
        store(square + i, s, left);
        store(vector + i, load(vector + i, left) + -rate * m / (root(s) / root_of_bias + eps), left);
    }
}
