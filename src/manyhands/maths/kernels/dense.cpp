// Dense layers: the forward and the backward pass of a chain of them, each in one call.
//
// Threads share panels of the batch, then columns of weights. Every number is the same sum in the
// same order, whatever thread computes it, and whatever other rows the batch has.

#include <vector>

#include "layers.h"
#include "team.h"

constexpr int FEW = 8;  // rows for which sums along the inputs are faster

// --- Products ---------------------------------------------------------------------------------------

// One panel of a layer's output, before its norm.
struct Outputs {
    const Layer &layer;
    const float *input;
    float *output;
    bool relu;
};

template <int ROWS, int VECTORS>
struct OutputTile {
    static void run(const Outputs &of, int row) {
        const long deep = of.layer.inputs;
        Vector sums[ROWS][VECTORS] = {};
        add<ROWS, VECTORS, false>(sums, of.layer.weight + row * deep, deep, of.input, deep);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) {
                const Vector value = sums[r][v] + each(of.layer.bias[row + r]);
                store(of.output + (row + r) * PANEL + v * LANES, of.relu ? relu(value) : value);
            }
    }
};

// One panel of the gradient by a layer's input. `through`: outputs of the ReLU below, if it has one.
struct Inputs {
    const Layer &layer;
    const float *slopes, *through;
    float *back;
};

template <int ROWS, int VECTORS>
struct InputTile {
    static void run(const Inputs &of, int row) {
        const Layer &layer = of.layer;
        Vector sums[ROWS][VECTORS] = {};
        add<ROWS, VECTORS, true>(sums, layer.weight + row, layer.inputs, of.slopes, layer.outputs);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) {
                const long at = (row + r) * PANEL + v * LANES;
                Vector value = sums[r][v];
                if (of.through) value = through_relu(value, load(of.through + at));
                store(of.back + at, value);
            }
    }
};

// PANEL columns of the gradient by a layer's weight. `input`: these columns of all rows.
struct Weights {
    const Layer &layer;
    const float *input;
    int rows, column;
};

template <int ROWS, int VECTORS>
struct WeightTile {
    static void run(const Weights &of, int row) {
        const Layer &layer = of.layer;
        const float *slopes = layer.slopes + (long)row * PANEL, *input = of.input;
        Vector sums[ROWS][VECTORS] = {};
        for (int left = of.rows; left > 0; left -= PANEL) {
            add<ROWS, VECTORS, false>(sums, slopes, PANEL, input, left < PANEL ? left : PANEL);
            slopes += (long)layer.outputs * PANEL;
            input += PANEL * PANEL;
        }
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) {
                const int from = of.column + v * LANES, left = layer.inputs - from;
                if (left > 0) store(layer.weight_gradient + (long)(row + r) * layer.inputs + from, sums[r][v], left);
            }
    }
};

// --- Forward ----------------------------------------------------------------------------------------

static void forward_panel(const Chain &chain, int panel) {
    const Layer *first = chain.layers, &top = first[chain.count - 1];
    const int rows = rows_in(chain.rows, panel);
    const long before = (long)panel * PANEL;
    float *x = chain.panels + before * first->inputs;
    across(chain.x + before * first->inputs, first->inputs, rows, first->inputs, x, PANEL, PANEL);
    for (const Layer *layer = first; layer <= &top; layer++) {
        float *output = layer->output + before * layer->outputs;
        const Outputs of{*layer, x, output, layer->relu && !layer->norm_weight};
        tiles<OutputTile>(of, layer->outputs, vectors_of(rows));
        if (layer->norm_weight) norm(*layer, panel);
        x = output;
    }
    across(x, PANEL, top.outputs, rows, chain.result + before * top.outputs, top.outputs, top.outputs);
}

// A few rows through one layer, row by row, as sums along LANES rows of the weights at a time.
static void few_products(const Layer &layer, const float *x, float *output, int rows) {
    const long deep = layer.inputs;
    for (int column = 0; column < layer.outputs; column += LANES) {
        const int count = layer.outputs - column;
        const float *weights[LANES];
        for (int i = 0; i < LANES; i++) weights[i] = layer.weight + (column + (i < count ? i : 0)) * deep;
        for (int row = 0; row < rows; row++) {
            const float *a = x + row * deep;
            Vector sums[LANES] = {};
            int k = 0;
            for (; k + LANES <= deep; k += LANES)
                for (int i = 0; i < LANES; i++) sums[i] += load(a + k) * load(weights[i] + k);
            if (k < deep)
                for (int i = 0; i < LANES; i++) sums[i] += load(a + k, deep - k) * load(weights[i] + k, deep - k);
            transpose(sums);
            for (int width = LANES / 2; width; width /= 2)
                for (int i = 0; i < width; i++) sums[i] += sums[i + width];
            Vector value = sums[0] + load(layer.bias + column, count);
            if (layer.relu && !layer.norm_weight) value = relu(value);
            store(output + (long)row * layer.outputs + column, value, count);
        }
    }
}

static void forward_few(const Chain &chain) {
    const float *x = chain.x;
    for (int at = 0; at < chain.count; at++) {
        const Layer &layer = chain.layers[at];
        float *output = at + 1 < chain.count ? layer.output : chain.result;
        few_products(layer, x, output, chain.rows);
        if (layer.norm_weight) few_norm(layer, output, chain.rows);
        x = output;
    }
}

extern "C" int panel_rows() { return PANEL; }

// `keeps`: a backward pass may follow.
extern "C" void chain_forward(const Chain *chain, int keeps) {
    if (!keeps && chain->rows <= FEW) return forward_few(*chain);
    share(chain->threads, panels_of(chain->rows), forward_panel, *chain);
}

// --- Backward ---------------------------------------------------------------------------------------

static void backward_panel(const Chain &chain, int panel) {
    const Layer *first = chain.layers, &top = first[chain.count - 1];
    const int rows = rows_in(chain.rows, panel);
    const long before = (long)panel * PANEL;
    float *slopes = top.slopes + before * top.outputs;
    across(chain.gradient + before * top.outputs, top.outputs, rows, top.outputs, slopes, PANEL, PANEL);
    if (top.relu)
        for (long i = before * top.outputs; i < (before + PANEL) * top.outputs; i += LANES)
            store(top.slopes + i, through_relu(load(top.slopes + i), load(top.output + i)));
    for (const Layer *layer = &top; layer >= first; layer--) {
        if (layer->norm_weight) norm_backward(*layer, panel);
        if (layer == first && !chain.to_input) return;
        const bool masked = layer > first && layer[-1].relu;
        float *back = (layer > first ? layer[-1].slopes : chain.back) + before * layer->inputs;
        const Inputs of{*layer, slopes, masked ? layer[-1].output + before * layer->inputs : nullptr, back};
        tiles<InputTile>(of, layer->inputs, vectors_of(rows));
        slopes = back;
    }
    across(slopes, PANEL, first->inputs, rows, chain.by_input + before * first->inputs, first->inputs, first->inputs);
}

// The gradients of a layer's biases and of its norm.
static void sum_rows(const Layer &layer, int panels) {
    const long n = layer.outputs;
    for (long i = 0; i < n; i++) {
        Vector total = ZERO;
        for (int panel = 0; panel < panels; panel++)
            for (int v = 0; v < PANEL; v += LANES) total += load(layer.slopes + (panel * n + i) * PANEL + v);
        layer.bias_gradient[i] = sum(total);
    }
    if (!layer.norm_weight) return;
    for (long i = 0; i < n; i++) {
        layer.norm_weight_gradient[i] = layer.norm_bias_gradient[i] = 0;
        for (int panel = 0; panel < panels; panel++) {
            layer.norm_weight_gradient[i] += layer.norm_sums[2 * panel * n + i];
            layer.norm_bias_gradient[i] += layer.norm_sums[(2 * panel + 1) * n + i];
        }
    }
}

// The gradients by PANEL columns of the weight of one layer; with the first, those of its biases.
static void backward_weights(const Chain &chain, int number) {
    int at = 0;
    for (; number >= panels_of(chain.layers[at].inputs); at++) number -= panels_of(chain.layers[at].inputs);
    const Layer &layer = chain.layers[at];
    const float *x = at ? chain.layers[at - 1].output : chain.panels;
    const int panels = panels_of(chain.rows), column = number * PANEL;
    const int columns = rows_in(layer.inputs, number);
    static thread_local std::vector<float> packed;
    packed.resize((long)panels * PANEL * PANEL);
    for (int panel = 0; panel < panels; panel++)
        across(x + ((long)panel * layer.inputs + column) * PANEL, PANEL, columns, PANEL,
               packed.data() + (long)panel * PANEL * PANEL, PANEL, PANEL);
    tiles<WeightTile>(Weights{layer, packed.data(), chain.rows, column}, layer.outputs, vectors_of(columns));
    if (!column) sum_rows(layer, panels);
}

// After a forward pass that keeps.
extern "C" void chain_backward(const Chain *chain) {
    share(chain->threads, panels_of(chain->rows), backward_panel, *chain);
    int pieces = 0;
    for (int at = 0; at < chain->count; at++) pieces += panels_of(chain->layers[at].inputs);
    share(chain->threads, pieces, backward_weights, *chain);
}

// c = a b' + bias, as a layer computes it.
extern "C" void product(const float *a, const float *b, const float *bias, float *c, int rows, int deep,
                        int columns) {
    const long all = (long)panels_of(rows) * PANEL;
    std::vector<float> panels(all * deep), output(all * columns);
    Layer layer{};
    layer.weight = b;
    layer.bias = bias;
    layer.output = output.data();
    layer.inputs = deep;
    layer.outputs = columns;
    Chain chain{&layer, 1, rows, 1, 0, a, panels.data(), c};
    chain_forward(&chain, 0);
}
