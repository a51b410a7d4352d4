// A chain of dense layers in memory, and layer norm.
#pragma once

#include "panels.h"

// One dense layer, then layer norm, then ReLU, if it has them. `networks/compiled.py` fills it.
struct Layer {
    const float *weight, *bias;              // [outputs, inputs], [outputs]
    float *weight_gradient, *bias_gradient;  // a backward pass replaces them
    const float *norm_weight, *norm_bias;    // [outputs]; null: no layer norm
    float *norm_weight_gradient, *norm_bias_gradient;
    float *normed, *scale;   // panels of outputs, of one number: from forward to backward
    float *norm_sums;        // [panels, 2, outputs]: of the gradients of the norm
    float *output, *slopes;  // panels of outputs; the gradient by the output
    int32_t inputs, outputs, relu;
    float eps;
};

struct Chain {
    const Layer *layers;
    int32_t count, rows, threads, to_input;
    const float *x;   // [rows, inputs]
    float *panels;    // panels of x
    float *result;    // [rows, outputs of the last layer]
    float *gradient;  // the same, by the result
    float *back;      // panels of the gradient by x, if to_input
    float *by_input;  // [rows, inputs], if to_input
};

// --- Layer norm -------------------------------------------------------------------------------------

static void norm(const Layer &layer, int panel) {
    const long n = layer.outputs, at = panel * n * PANEL;
    for (int v = 0; v < PANEL; v += LANES) {
        float *x = layer.output + at + v, *normed = layer.normed + at + v;
        Vector total = ZERO, squares = ZERO, scale;
        for (int i = 0; i < n; i++) total += load(x + i * PANEL);
        const Vector mean = total / (float)n;
        for (int i = 0; i < n; i++) {
            const Vector off = load(x + i * PANEL) - mean;
            squares += off * off;
        }
        squares = squares / (float)n + layer.eps;
        for (int i = 0; i < LANES; i++) scale[i] = 1 / std::sqrt(squares[i]);
        store(layer.scale + panel * PANEL + v, scale);
        for (int i = 0; i < n; i++) {
            const Vector unit = (load(x + i * PANEL) - mean) * scale;
            store(normed + i * PANEL, unit);
            const Vector y = unit * layer.norm_weight[i] + layer.norm_bias[i];
            store(x + i * PANEL, layer.relu ? relu(y) : y);
        }
    }
}

// From the gradient by the output of the norm to that by its input, in place.
static void norm_backward(const Layer &layer, int panel) {
    const long n = layer.outputs, at = panel * n * PANEL;
    float *by_weight = layer.norm_sums + 2 * panel * n, *by_bias = by_weight + n;
    std::memset(by_weight, 0, 2 * n * sizeof(float));
    for (int v = 0; v < PANEL; v += LANES) {
        float *g = layer.slopes + at + v;
        const float *normed = layer.normed + at + v;
        Vector total = ZERO, along = ZERO;
        for (int i = 0; i < n; i++) {
            const Vector by = load(g + i * PANEL), unit = load(normed + i * PANEL);
            by_weight[i] += sum(by * unit);
            by_bias[i] += sum(by);
            total += by * layer.norm_weight[i];
            along += by * unit * layer.norm_weight[i];
        }
        const Vector mean = total / (float)n, slope = along / (float)n;
        const Vector scale = load(layer.scale + panel * PANEL + v);
        for (int i = 0; i < n; i++) {
            const Vector by = load(g + i * PANEL) * layer.norm_weight[i];
            store(g + i * PANEL, scale * (by - mean - load(normed + i * PANEL) * slope));
        }
    }
}

// The same for a few rows, row by row.
static void few_norm(const Layer &layer, float *x, int rows) {
    const int n = layer.outputs;
    for (int row = 0; row < rows; row++, x += n) {
        Vector total = ZERO, squares = ZERO;
        for (int i = 0; i < n; i += LANES) total += load(x + i, n - i);
        const float mean = sum(total) / n;
        for (int i = 0; i < n; i += LANES) {
            store(x + i, load(x + i, n - i) - mean, n - i);
            const Vector off = load(x + i, n - i);  // zeros beyond the last
            squares += off * off;
        }
        const float scale = 1 / std::sqrt(sum(squares) / n + layer.eps);
        for (int i = 0; i < n; i += LANES) {
            const Vector unit = load(x + i, n - i) * scale;
            const Vector y = unit * load(layer.norm_weight + i, n - i) + load(layer.norm_bias + i, n - i);
            store(x + i, layer.relu ? relu(y) : y, n - i);
        }
    }
}
