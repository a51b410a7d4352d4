// Panels of the batch, and products of tiles of them.
//
// Activations lie in panels of PANEL rows of the batch: [panels][width][PANEL]. A vector is one
// feature of LANES rows. So weights are used as they lie.
#pragma once

#include "vectors.h"

constexpr int PANEL = WIDE * LANES;

static inline int panels_of(int rows) { return (rows + PANEL - 1) / PANEL; }
static inline int rows_in(int rows, int panel) { return rows - panel * PANEL < PANEL ? rows - panel * PANEL : PANEL; }

// [rows, columns] at `stride` to [columns, rows] at `wide`, with zeros up to `most` rows.
static void across(const float *from, long stride, int rows, int columns, float *to, long wide, int most) {
    for (int row = 0; row < most; row += LANES)
        for (int column = 0; column < columns; column += LANES) {
            Vector square[LANES];
            const int left = columns - column;
            for (int i = 0; i < LANES; i++)
                square[i] = row + i < rows ? load(from + (row + i) * stride + column, left) : ZERO;
            transpose(square);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                if (i < left) store(to + (column + i) * wide + row, square[i], most - row);
        }
}

// Adds `depth` products to ROWS x VECTORS sums. `ACROSS`: the numbers of `a` lie [depth, rows].
template <int ROWS, int VECTORS, bool ACROSS>
static inline void add(Vector (&sums)[ROWS][VECTORS], const float *a, long stride, const float *b, int depth) {
    for (int k = 0; k < depth; k++, b += PANEL, a += ACROSS ? stride : 1) {
        Vector column[VECTORS];
        for (int v = 0; v < VECTORS; v++) column[v] = load(b + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            const Vector one = each(ACROSS ? a[r] : a[r * stride]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] += one * column[v];
        }
    }
}

// Calls `tile` of Tile<ROWS, vectors> for all rows from 0 to `rows`, in tiles of about equal height.
template <template <int, int> class Tile, int ROWS, int VECTORS, typename Of>
static inline void tile_of(const Of &of, int row, int rows) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS) return Tile<ROWS, VECTORS>::run(of, row);
        tile_of<Tile, ROWS - 1, VECTORS>(of, row, rows);
    }
}

template <template <int, int> class Tile, typename Of>
static void tiles(const Of &of, int rows, int vectors) {
    const long blocks = (rows + TALL - 1) / TALL;
    for (int block = 0; block < blocks; block++) {
        const int row = rows * block / blocks, height = rows * (block + 1) / blocks - row;
        if (vectors == 1)
            tile_of<Tile, TALL, 1>(of, row, height);
        else
            tile_of<Tile, TALL, WIDE>(of, row, height);
    }
}

static inline int vectors_of(int rows) { return rows <= LANES ? 1 : WIDE; }

