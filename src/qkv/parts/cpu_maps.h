// Linear maps of a few rows: y = x Wᵀ + b.
//
// W lies in panels of 32 outputs, and a panel input by input, so that it is read from one end to the other. Its numbers
// stand in cells of 32 bits: one in single precision, two in bfloat16, four whole numbers of 8 bits. A cell of x is
// multiplied with those of all outputs of a panel, for up to eight rows at a time.

#pragma once

#include "cpu_vectors.h"

#include <omp.h>

constexpr int PANEL = 32, PARTS = PANEL / LANES;  // as Python packs them; registers that one cell of all outputs fills
constexpr long BLOCK = 512;  // cells that are added up before they join the sum of others: sums of fewer are rounded less
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 8;  // whose sums fit into registers
#else
constexpr int MOST_ROWS = 2;
#endif

enum Kind { SINGLE, BFLOAT16, EIGHT_BITS };  // as Python numbers them

struct Map {
  const uint32_t *cells;  // [panels, cells of an input row, PANEL]
  const float *bias;      // of outputs, filled up to whole panels; so are the next two
  const float *scales;    // of outputs in 8 bits
  const float *sums;      // of the weights of an output in 8 bits, in units of its scale
  long inputs, outputs;
  int kind;

  long row() const { return inputs / (kind == SINGLE ? 1 : kind == BFLOAT16 ? 2 : 4); }  // cells
  long panels() const { return (outputs + PANEL - 1) / PANEL; }
};

// What is multiplied, in cells: those of rows that are done together stand side by side. In 8 bits a number is
// step · (cell - zero).
struct Inputs {
  uint32_t *cells;  // group by group: [cells of a row, rows of the group]
  float *steps, *zeros;
};

// Rows that are done together: eight, as long as there are so many, then four, two and one.
struct Group {
  long first;
  int rows;

  static Group at(long first, long rows) {
    int many = MOST_ROWS;
    while (many > rows - first) many /= 2;
    return {first, many};
  }

  static Group of(long row, long rows) {
    Group group = at(row / MOST_ROWS * MOST_ROWS, rows);
    while (row >= group.first + group.rows) group = at(group.first + group.rows, rows);
    return group;
  }
};

struct OfSingle {
  static constexpr bool WHOLE = false;  // whether numbers are whole
  typedef Floats Sum;
  static inline Sum plus(Sum sum, Cells w, uint32_t x) {
    float number;
    std::memcpy(&number, &x, 4);
    return sum + (Floats)w * number;
  }
};

struct OfBFloat16 {
  static constexpr bool WHOLE = false;  // whether numbers are whole
  typedef Floats Sum;
  static inline Sum plus(Sum sum, Cells w, uint32_t x) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)(Cells{} + x));
#else
    const Floats first = (Floats)(Cells{} + (x << 16)), second = (Floats)(Cells{} + (x & 0xffff0000u));
    return sum + (Floats)(w << 16) * first + (Floats)(w & 0xffff0000u) * second;
#endif
  }
};

struct OfEightBits {
  static constexpr bool WHOLE = true;  // whether numbers are whole
  typedef Ints Sum;
  static inline Sum plus(Sum sum, Cells w, uint32_t x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)(Cells{} + x), (__m512i)w);
#else
    for (int i = 0; i < 4; i++) sum += (((Ints)w << (24 - 8 * i)) >> 24) * (int32_t)((x >> (8 * i)) & 255);
    return sum;
#endif
  }
};

// Weights that are fetched from memory while others are multiplied that are there: `bytes` of them for each cell.
struct Fetched {
  const char *from;
  long bytes;
};

// What becomes of one panel of outputs, of ROWS rows from `first` on, in `values` [ROWS, PANEL]. APART cells of a row are
// added up apart, so that none waits for another.
template <class Of, int ROWS, int APART, bool FETCHES = false>
static void of_panel(const Map &map, const Inputs &x, long first, long panel, float *values, Fetched next = {}) {
  const long row = map.row();
  const uint32_t *w = map.cells + panel * PANEL * row, *given = x.cells + first * row;
  typename Of::Sum total[ROWS][PARTS] = {};
  for (long begin = 0; begin < row; begin += BLOCK) {
    const long end = begin + BLOCK < row ? begin + BLOCK : row;
    typename Of::Sum sum[APART][ROWS][PARTS] = {};
    for (long i = begin; i < end; i += APART)
#pragma GCC unroll 8
      for (int a = 0; a < APART; a++) {
        if (FETCHES) {
          const char *at = next.from + i * next.bytes;
          __builtin_prefetch(at, 0, 2);
          __builtin_prefetch(at + 64, 0, 2);
        }
        Cells weights[PARTS];
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) weights[p] = loaded<Cells>(w + (i + a) * PANEL + p * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          const uint32_t cell = given[(i + a) * ROWS + r];
#pragma GCC unroll 8
          for (int p = 0; p < PARTS; p++) sum[a][r][p] = Of::plus(sum[a][r][p], weights[p], cell);
        }
      }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
      for (int a = 0; a < APART; a++)
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++) total[r][p] += sum[a][r][p];
  }
  for (int r = 0; r < ROWS; r++)
    for (int p = 0; p < PARTS; p++) {
      const long output = panel * PANEL + p * LANES;
      Floats value;
      if constexpr (Of::WHOLE) {
        value = __builtin_convertvector(total[r][p], Floats) - loaded<Floats>(map.sums + output) * x.zeros[first + r];
        value *= loaded<Floats>(map.scales + output) * x.steps[first + r];
      } else {
        value = total[r][p];
      }
      store(values + r * PANEL + p * LANES, value + loaded<Floats>(map.bias + output));
    }
}

// The first rows wait for the weights of their panel; those that follow find them, and fetch those of the next panel.
template <class Of>
static void of_group(const Map &map, const Inputs &x, Group group, long rows, long panel, float *values) {
  const long others = (rows + MOST_ROWS - 1) / MOST_ROWS - 1, number = group.first / MOST_ROWS;
  if (group.rows == 8 && number > 0 && panel + 1 < map.panels()) {
    const long row = map.row(), bytes = (4 * PANEL + others - 1) / others;
    const char *next = (const char *)(map.cells + (panel + 1) * PANEL * row) + (number - 1) * row * bytes;
    of_panel<Of, MOST_ROWS < 8 ? 1 : 8, 1, true>(map, x, group.first, panel, values, {next, bytes});
  } else if (group.rows == 8) of_panel<Of, MOST_ROWS < 8 ? 1 : 8, 1>(map, x, group.first, panel, values);
  else if (group.rows == 4) of_panel<Of, MOST_ROWS < 4 ? 1 : 4, 2>(map, x, group.first, panel, values);
  else if (group.rows == 2) of_panel<Of, 2, MOST_ROWS < 8 ? 1 : 2>(map, x, group.first, panel, values);
  else of_panel<Of, 1, MOST_ROWS < 8 ? 2 : 4>(map, x, group.first, panel, values);
}

// By all threads of a team, which then wait for each other. `done(row, output, values)` gets LANES outputs of a row.
template <class Done> static inline void map_rows(const Map &map, const Inputs &x, long rows, Done done) {
  // Threads take a few panels at a time, and more where they fetch the next of their own.
  const long shares = (rows > MOST_ROWS ? 2 : 4) * omp_get_num_threads(), fair = map.panels() / shares;
  const long most = rows > MOST_ROWS ? 32 : 8, together = fair < 1 ? 1 : fair > most ? most : fair;
#pragma omp for schedule(dynamic, together)
  for (long panel = 0; panel < map.panels(); panel++) {
    float values[MOST_ROWS * PANEL];
    for (Group group = Group::at(0, rows); group.first < rows; group = Group::at(group.first + group.rows, rows)) {
      if (map.kind == SINGLE) of_group<OfSingle>(map, x, group, rows, panel, values);
      else if (map.kind == BFLOAT16) of_group<OfBFloat16>(map, x, group, rows, panel, values);
      else of_group<OfEightBits>(map, x, group, rows, panel, values);
      for (long i = 0; i < group.rows * PANEL; i += LANES)
        done(group.first + i / PANEL, panel * PANEL + i % PANEL, loaded<Floats>(values + i));
    }
  }
}

// The least and the largest number of a row, and 0, are whole steps from each other.
static inline void into_bytes(const float *x, long width, uint8_t *bytes, float &step, float &zero) {
  Floats low = {}, high = {}, odd = {};
  for (long i = 0; i < width; i += LANES) {
    const Floats v = loaded<Floats>(x + i);
    low = v < low ? v : low;
    high = v > high ? v : high;
    odd += v - v;
  }
  const float lowest = -largest_of(-low), finest = 1.17549435e-38f;
  step = (largest_of(high) - lowest) / 255;
  step = step > finest ? step : finest;
  zero = whole(all(-lowest / step))[0];
  for (long i = 0; i < width; i += LANES) {
    Floats steps = whole(loaded<Floats>(x + i) / step) + zero;
    steps = steps < 0.0f ? Floats{} : steps;
    steps = steps > 255.0f ? all(255.0f) : steps;
    store(bytes + i, __builtin_convertvector(__builtin_convertvector(steps, Ints), Bytes));
  }
  step += sum_of(odd);  // 0, or no number where one of them was none or without end: so are the answers
}

// One row of numbers in cells, as a map wants them, of `rows` in all; `room` has place for one row.
static inline void into_cells(const Map &map, const float *x, const Inputs &into, long row, long rows, float *room) {
  const Group group = Group::of(row, rows);
  const long many = map.row();
  uint32_t *to = into.cells + group.first * many + (row - group.first);
  const void *cells = x;
  if (map.kind == BFLOAT16) {
    for (long i = 0; i < map.inputs; i += LANES) BFloat16::write((uint16_t *)room + i, loaded<Floats>(x + i));
    cells = room;
  } else if (map.kind == EIGHT_BITS) {
    into_bytes(x, map.inputs, (uint8_t *)room, into.steps[row], into.zeros[row]);
    cells = room;
  }
  for (long i = 0; i < many; i++) std::memcpy(to + i * group.rows, (const uint32_t *)cells + i, 4);
}
