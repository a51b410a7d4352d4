// Dense layers: the forward and the backward pass of a chain of them, each in one call.
//
// A product is cut into panels of WIDE vectors of columns by DEEP numbers of the inner dimension.
// A panel is packed, so it stays in the processor's first cache while all rows are multiplied.

#include "vectors.h"

constexpr int DEEP = 128;
constexpr int TALL = 6;  // rows of a tile
constexpr int FEW = 8;   // rows for which packing the weights takes longer than it saves
constexpr int PANEL = WIDE * LANES;

// One dense layer, then layer norm, then ReLU, if it has them. `networks/compiled.py` fills it.
struct Layer {
    const float *weight, *bias;              // [outputs, inputs], [outputs]
    float *weight_gradient, *bias_gradient;  // a backward pass replaces them
    const float *norm_weight, *norm_bias;    // [outputs]; null: no layer norm
    float *norm_weight_gradient, *norm_bias_gradient;
    float *normed, *scale;  // [rows, outputs], [rows]: from forward to backward
    float *output, *back;   // [rows, outputs], [rows, inputs]: the gradient by the input
    int32_t inputs, outputs, relu;
    float eps;
};

// c = a b + bias, [rows, deep] by [deep, columns]. `across`: the matrix is stored transposed.
struct Product {
    const float *a;
    bool a_across;
    const float *b;
    bool b_across;
    float *c;
    int rows, deep, columns;
    const float *bias = nullptr;
    bool relu = false;
    const float *through = nullptr;  // outputs of a ReLU: c becomes the gradient before it
};

// The numbers from `begin` to `end` of the inner dimension, for one tile of c at (row, column).
template <int ROWS, int VECTORS, bool ACROSS>
static void tile(const Product &of, const float *panel, int row, int column, int begin, int end) {
    const long stride = ACROSS ? of.rows : of.deep;
    const float *a = ACROSS ? of.a + begin * stride + row : of.a + row * stride + begin;
    Vector sums[ROWS][VECTORS] = {};
    for (int k = begin; k < end; k++, panel += VECTORS * LANES, a += ACROSS ? stride : 1) {
        Vector b[VECTORS];
        for (int v = 0; v < VECTORS; v++) b[v] = load(panel + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            const Vector one = each(ACROSS ? a[r] : a[r * stride]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] += one * b[v];
        }
    }
    const bool last = end == of.deep;
    for (int v = 0; v < VECTORS; v++) {
        const int from = column + v * LANES, count = of.columns - from;
        const Vector bias = last && of.bias ? load(of.bias + from, count) : ZERO;
        for (int r = 0; r < ROWS; r++) {
            const long at = (row + r) * (long)of.columns + from;
            Vector value = sums[r][v];
            if (begin) value += load(of.c + at, count);
            if (last && of.bias) value += bias;
            if (last && of.relu) value = relu(value);
            if (last && of.through) value = through_relu(value, load(of.through + at, count));
            store(of.c + at, value, count);
        }
    }
}

typedef void Tile(const Product &, const float *, int, int, int, int);

template <bool ACROSS, int VECTORS>
static Tile *of_rows(int rows) {
    static Tile *const known[TALL] = {tile<1, VECTORS, ACROSS>, tile<2, VECTORS, ACROSS>,
                                      tile<3, VECTORS, ACROSS>, tile<4, VECTORS, ACROSS>,
                                      tile<5, VECTORS, ACROSS>, tile<6, VECTORS, ACROSS>};
    return known[rows - 1];
}

template <bool ACROSS>
static Tile *of_size(int rows, int vectors) {
    if (vectors == 1) return of_rows<ACROSS, 1>(rows);
    if (vectors == 2) return of_rows<ACROSS, 2>(rows);
    if (vectors == 3) return of_rows<ACROSS, 3 <= WIDE ? 3 : 1>(rows);
    return of_rows<ACROSS, WIDE>(rows);
}

// Copies [begin, end) x [column, column + vectors) of b, row by row, with zeros beyond its columns.
static void pack(const Product &of, float *panel, int column, int vectors, int begin, int end) {
    const int width = vectors * LANES;
    for (int v = 0; v < vectors; v++) {
        const int from = column + v * LANES, count = of.columns - from;
        float *to = panel + v * LANES;
        if (!of.b_across) {
            const float *b = of.b + (long)begin * of.columns + from;
            for (int k = begin; k < end; k++, b += of.columns, to += width) store(to, load(b, count));
            continue;
        }
        const float *b = of.b + (long)from * of.deep;
        for (int k = begin; k < end; k += LANES) {
            const int depth = end - k;
            Vector square[LANES];
            if (count >= LANES && depth >= LANES) {
                for (int i = 0; i < LANES; i++) square[i] = load(b + (long)i * of.deep + k);
            } else {
                for (int i = 0; i < LANES; i++)
                    square[i] = i < count ? load(b + (long)i * of.deep + k, depth) : ZERO;
            }
            transpose(square);
            const int most = depth < LANES ? depth : LANES;
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                if (i < most) store(to + i * width, square[i]);
            to += LANES * width;
        }
    }
}

// A few rows of c, as sums along LANES rows of b at a time.
static void multiply_few(const Product &of) {
    for (int column = 0; column < of.columns; column += LANES) {
        const int count = of.columns - column;
        const float *b[LANES];
        for (int i = 0; i < LANES; i++) b[i] = of.b + (long)(column + (i < count ? i : 0)) * of.deep;
        for (int row = 0; row < of.rows; row++) {
            const float *a = of.a + (long)row * of.deep;
            Vector sums[LANES] = {};
            int k = 0;
            for (; k + LANES <= of.deep; k += LANES)
                for (int i = 0; i < LANES; i++) sums[i] += load(a + k) * load(b[i] + k);
            if (k < of.deep)
                for (int i = 0; i < LANES; i++)
                    sums[i] += load(a + k, of.deep - k) * load(b[i] + k, of.deep - k);
            transpose(sums);
            Vector value = load(of.bias + column, count);
            for (int i = 0; i < LANES; i++) value += sums[i];
            if (of.relu) value = relu(value);
            store(of.c + row * (long)of.columns + column, value, count);
        }
    }
}

static void multiply(const Product &of) {
    if (of.b_across && of.rows <= FEW && of.deep >= LANES) return multiply_few(of);
    alignas(64) float panel[DEEP * PANEL];
    const int blocks = (of.rows + TALL - 1) / TALL;
    for (int column = 0; column < of.columns; column += PANEL) {
        const int left = (of.columns - column + LANES - 1) / LANES, vectors = left < WIDE ? left : WIDE;
        int begin = 0;
        do {
            const int end = begin + DEEP < of.deep ? begin + DEEP : of.deep;
            pack(of, panel, column, vectors, begin, end);
            for (int block = 0; block < blocks; block++) {
                const int row = (long)of.rows * block / blocks;
                const int rows = (long)of.rows * (block + 1) / blocks - row;
                Tile *run = of.a_across ? of_size<true>(rows, vectors) : of_size<false>(rows, vectors);
                run(of, panel, row, column, begin, end);
            }
            begin = end;
        } while (begin < of.deep);
    }
}

static void norm(const Layer &layer, int rows) {
    const int n = layer.outputs;
    for (int row = 0; row < rows; row++) {
        float *x = layer.output + (long)row * n, *normed = layer.normed + (long)row * n;
        Vector total = ZERO, squares = ZERO;
        for (int i = 0; i < n; i += LANES) total += load(x + i, n - i);
        const float mean = sum(total) / n;
        for (int i = 0; i < n; i += LANES) {
            const Vector off = load(x + i, n - i) - mean;
            store(normed + i, off, n - i);
            const Vector kept = load(normed + i, n - i);  // zeros beyond the last
            squares += kept * kept;
        }
        const float scale = layer.scale[row] = 1 / std::sqrt(sum(squares) / n + layer.eps);
        for (int i = 0; i < n; i += LANES) {
            const Vector unit = load(normed + i, n - i) * scale;
            store(normed + i, unit, n - i);
            const Vector y = unit * load(layer.norm_weight + i, n - i) + load(layer.norm_bias + i, n - i);
            store(x + i, layer.relu ? relu(y) : y, n - i);
        }
    }
}

// From the gradient by the output of the norm to that by its input, in place.
static void norm_backward(const Layer &layer, float *gradient, int rows) {
    const int n = layer.outputs;
    std::memset(layer.norm_weight_gradient, 0, n * sizeof(float));
    std::memset(layer.norm_bias_gradient, 0, n * sizeof(float));
    for (int row = 0; row < rows; row++) {
        float *g = gradient + (long)row * n;
        const float *normed = layer.normed + (long)row * n;
        Vector total = ZERO, along = ZERO;
        for (int i = 0; i < n; i += LANES) {
            const Vector by = load(g + i, n - i), unit = load(normed + i, n - i);
            float *weight = layer.norm_weight_gradient + i, *bias = layer.norm_bias_gradient + i;
            store(weight, load(weight, n - i) + by * unit, n - i);
            store(bias, load(bias, n - i) + by, n - i);
            const Vector weighed = by * load(layer.norm_weight + i, n - i);
            store(g + i, weighed, n - i);
            total += weighed;
            along += weighed * unit;
        }
        const float mean = sum(total) / n, slope = sum(along) / n, scale = layer.scale[row];
        for (int i = 0; i < n; i += LANES) {
            const Vector unit = load(normed + i, n - i);
            store(g + i, scale * (load(g + i, n - i) - mean - unit * slope), n - i);
        }
    }
}

static void sum_rows(const float *of, float *to, int rows, int columns) {
    for (int i = 0; i < columns; i += LANES) {
        Vector total = ZERO;
        for (int row = 0; row < rows; row++) total += load(of + (long)row * columns + i, columns - i);
        store(to + i, total, columns - i);
    }
}

extern "C" void chain_forward(const Layer *layers, int count, const float *x, int rows) {
    for (const Layer *layer = layers; layer < layers + count; layer++) {
        Product product{x, false, layer->weight, true, layer->output, rows, layer->inputs, layer->outputs};
        product.bias = layer->bias;
        product.relu = layer->relu && !layer->norm_weight;
        multiply(product);
        if (layer->norm_weight) norm(*layer, rows);
        x = layer->output;
    }
}

// `gradient`: by the last output; it is overwritten. `to_input`: also into the first layer's `back`.
extern "C" void chain_backward(const Layer *layers, int count, const float *x, float *gradient, int rows,
                               int to_input) {
    const Layer &top = layers[count - 1];
    if (top.relu)
        for (long i = 0, n = (long)rows * top.outputs; i < n; i += LANES)
            store(gradient + i, through_relu(load(gradient + i, n - i), load(top.output + i, n - i)), n - i);
    for (int at = count - 1; at >= 0; at--) {
        const Layer &layer = layers[at], *below = at ? &layers[at - 1] : nullptr;
        if (layer.norm_weight) norm_backward(layer, gradient, rows);
        sum_rows(gradient, layer.bias_gradient, rows, layer.outputs);
        const float *input = below ? below->output : x;
        multiply({gradient, true, input, false, layer.weight_gradient, layer.outputs, rows, layer.inputs});
        if (!below && !to_input) return;
        Product product{gradient, false, layer.weight, false, layer.back, rows, layer.outputs, layer.inputs};
        product.through = below && below->relu ? below->output : nullptr;
        multiply(product);
        gradient = layer.back;
    }
}

// c = a b' + bias, as a layer computes it.
extern "C" void product(const float *a, const float *b, const float *bias, float *c, int rows, int deep,
                        int columns) {
    Product product{a, false, b, true, c, rows, deep, columns};
    product.bias = bias;
    multiply(product);
}
